"""The first tab of the page: turns a digit into a network, classifies, edits and shuffles it: `build`."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import partial
from typing import Any

from neuralfunctionals.errors import UserError
from neuralfunctionals.inr.siren import CONVENTIONS
from neuralfunctionals.web import cards
from neuralfunctionals.web.actions import OPTIONS, guarded, script
from neuralfunctionals.web.digits import samples
from neuralfunctionals.web.exhibit import OMEGA, SPEC, Exhibit, Models
from neuralfunctionals.web.pictures import grey_url
from neuralfunctionals.web.uploads import MAX_BYTES, MAX_NETWORK_BYTES

_INTRO = (
    "<p>A picture can be stored as a tiny neural network, which maps each point to the brightness of the picture "
    f"there. The picture is then just <b>{SPEC.num_entries:,} numbers</b>, the network's weights. This page "
    "turns your digit into such numbers and passes them to other networks. These <b>never see a pixel</b>: they only "
    "read and change the numbers.</p>"
)
_CONVENTION_LABELS = {"paper": "row first, ±1", "dws": "column first, ±0.5"}
_SCRAMBLE = (
    "<p class='nf-note'>The neurons of a layer have no order: swap two of them, and the network computes the same "
    "function. The signs of a sine neuron can be flipped, too. Models that take weights should not depend on this.</p>"
)


def build(models: Models) -> None:
    """Adds the tab to the open `gradio.Blocks`."""
    import gradio as gr

    def fit(source: str, exhibit: Exhibit | None) -> tuple[Any, ...]:
        try:
            exhibit = Exhibit.from_source(source or "")
        except ValueError as error:
            return (exhibit, cards.message(str(error)), *[gr.skip()] * (4 + len(buttons)))
        return exhibit, "", *shown(exhibit), waiting, empty_changes, *[gr.Button(interactive=True)] * len(buttons)

    def shown(exhibit: Exhibit) -> tuple[str, str]:
        return cards.network_card(exhibit), cards.edit_card(exhibit)

    def read(exhibit: Exhibit | None) -> tuple[Any, ...]:
        if exhibit is None:  # the previous action failed
            return gr.skip(), gr.skip()
        exhibit = exhibit.read(models)
        return exhibit, cards.reading_card(exhibit)

    def change(move: Callable[..., Exhibit]) -> Callable[..., Any]:
        def run(exhibit: Exhibit | None) -> tuple[Any, ...]:
            exhibit = move(_require(exhibit))
            return exhibit, *shown(exhibit)

        return run

    def scramble(move: Callable[..., Exhibit]) -> Callable[..., Any]:
        def run(exhibit: Exhibit | None) -> tuple[Any, ...]:
            before = _require(exhibit).read(models)
            after = move(before, seed=secrets.randbits(31)).read(models)
            changes = cards.changes_card(before, after, after.changes(before))
            return after, *shown(after), cards.reading_card(after), changes

        return run

    def button(label: str, name: str) -> Any:
        """A button that is disabled until there is a network."""
        return gr.Button(label, interactive=False, elem_id=f"nf-{name}", min_width=70)

    waiting = cards.empty_card("Reading the weights …")
    empty_changes = cards.empty_card("Press a button: the numbers of your network change. Does anything else change?")

    state = gr.State(None)
    source = gr.Textbox(visible=False)
    gr.HTML(_INTRO, elem_classes="nf-intro")
    with gr.Row(elem_classes=["nf-row", "nf-wide-row"], equal_height=True):
        with gr.Column(elem_classes=["nf-card", "nf-draw"], scale=4, min_width=300):
            gr.HTML(cards.title(1, "Draw a digit", "with the mouse or a finger, or pick one"))
            gr.HTML(_pad(), js_on_load=script("pad.js", MAX_BYTES), elem_id="nf-pad")
            fit_button = gr.Button("Turn it into a network", variant="primary", elem_id="nf-fit")
            note = gr.HTML("", elem_id="nf-message")
            gr.HTML(_own_network(), js_on_load=script("network.js", MAX_NETWORK_BYTES), elem_id="nf-own")
        with gr.Column(elem_classes="nf-card", scale=7, min_width=300):
            gr.HTML(cards.title(2, "It becomes a network", "trained while you wait"))
            network = gr.HTML(cards.empty_card("Your digit will appear here as a network."))
    with gr.Row(elem_classes="nf-row", equal_height=True):
        with gr.Column(elem_classes="nf-card", scale=1, min_width=300):
            gr.HTML(cards.title(3, "Read the numbers", "which digit is it?"))
            reading = gr.HTML(cards.empty_card("A trained model will classify the digit from the weights."))
        with gr.Column(elem_classes="nf-card", scale=1, min_width=300):
            gr.HTML(cards.title(4, "Edit the numbers", "and the picture changes"))
            with gr.Row(elem_classes="nf-buttons"):
                editors = {name: button(cards.EDIT_WORDS.get(name, name).capitalize(), name) for name in models.editors}
                undo = button("Undo all", "undo")
            image = gr.HTML(cards.empty_card("A trained editor will change the weights, and with them the picture."))
        with gr.Column(elem_classes="nf-card", scale=1, min_width=300):
            gr.HTML(cards.title(5, "Scramble the numbers", "and nothing else changes"))
            gr.HTML(_SCRAMBLE)
            with gr.Row(elem_classes="nf-buttons"):
                shuffle = button("Shuffle neurons", "shuffle")
                flip = button("Flip signs", "flip")
            changes = gr.HTML(empty_changes, elem_id="nf-changes")

    buttons = [*editors.values(), undo, shuffle, flip]
    fitted = fit_button.click(
        guarded(fit),
        [source, state],
        [state, note, network, image, reading, changes, *buttons],
        api_name="fit",
        js="(source, state) => [window.nfPad ? window.nfPad.source() : source, state]",
        **OPTIONS,
    )
    changers = {name: (editors[name], partial(Exhibit.edited, models=models, name=name)) for name in editors}
    events = [fitted]
    for name, (pressed, move) in {**changers, "undo": (undo, Exhibit.restored)}.items():
        events.append(pressed.click(guarded(change(move)), state, [state, network, image], api_name=name, **OPTIONS))
    for number, event in enumerate(events):
        name = f"read_{number}" if number else "read"
        event.success(guarded(read), state, [state, reading], api_name=name, **OPTIONS)
    everything = [state, network, image, reading, changes]
    shuffle.click(guarded(scramble(Exhibit.shuffled)), state, everything, api_name="shuffle", **OPTIONS)
    flip.click(guarded(scramble(Exhibit.flipped)), state, everything, api_name="flip", **OPTIONS)


def _require(exhibit: Exhibit | None) -> Exhibit:
    if exhibit is None:
        raise UserError("There is no network yet: draw a digit and turn it into one first.")
    return exhibit


def _pad() -> str:
    chosen = "".join(
        f'<button type="button" data-sample="{k}" aria-label="sample {k}"><img src="{grey_url(image)}" alt=""></button>'
        for k, image in enumerate(samples())
    )
    return (
        '<div class="nf-canvas"><canvas width="280" height="280" aria-label="Draw a digit here"></canvas>'
        '<span class="nf-hint">draw here</span></div>'
        f'<div class="nf-samples">{chosen}</div>'
        '<div class="nf-tools"><button type="button" data-clear>Clear</button>'
        '<label>Upload a picture<input type="file" accept="image/*"></label></div>'
        '<div class="nf-warning" role="alert"></div>'
    )


def _own_network() -> str:
    conventions = "".join(
        f'<option value="{name}">{_CONVENTION_LABELS.get(name, name)}</option>' for name in CONVENTIONS
    )
    return (
        '<div class="nf-drop"><p><b>Have a network already?</b> Drop it here.</p>'
        f'<p class="nf-note">A SIREN with {"-".join(map(str, SPEC.widths))} neurons, saved as .pth, .pt or '
        '.safetensors.</p><div class="nf-tools"><label>Choose a network<input type="file"></label></div>'
        '<p class="nf-note nf-file"></p><div class="nf-form">'
        f'<label>Frequency<input data-form type="number" value="{OMEGA:g}" min="0" step="any" inputmode="decimal">'
        f"</label><label>Convention<select data-form>{conventions}</select></label></div>"
        '<div class="nf-warning" role="alert"></div></div>'
    )
