"""The layout of the page and what its buttons do: `build_page`."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from neuralfunctionals.errors import UserError
from neuralfunctionals.web import cards
from neuralfunctionals.web.digits import MAX_BYTES, read_source, samples
from neuralfunctionals.web.exhibit import SPEC, Exhibit, Models
from neuralfunctionals.web.pictures import grey_url

QUEUE_SIZE = 1000
"""Requests that may wait, and are told their place in line; more are told that the page is busy."""
SESSIONS = 1000
"""Visitors whose networks are kept; the longest unseen is forgotten."""

_HERE = Path(__file__).parent
CSS = (_HERE / "page.css").read_text()
_PAD_JS = (_HERE / "pad.js").read_text()
_INTRO = (
    "<h1>Networks that read networks</h1><p>A picture can be stored as a tiny neural network: ask it about a point, "
    "and it answers with the brightness there. The picture is then nothing but <b>"
    f"{SPEC.num_entries:,} numbers</b>, the network's weights. This page turns a digit of yours into such numbers and "
    "hands them to other networks, which <b>never see a pixel</b>: they read and change the numbers.</p>"
)
_EDIT_LABELS = {"dilate": "Thicker", "erode": "Thinner", "gradient": "Outlines"}


def build_page(models: Models) -> Any:
    """The page for these models, a `gradio.Blocks`."""
    import gradio as gr

    def guarded(action: Callable[..., Any]) -> Callable[..., Any]:
        """Says what is wrong on the page; what nobody foresaw goes to the log, and the page says so."""

        def run(*inputs: Any) -> Any:
            try:
                return action(*inputs)
            except ValueError as error:
                raise gr.Error(str(error), print_exception=False, title="This does not work") from error
            except Exception as error:
                logging.getLogger(__name__).exception("an action of the page failed")
                raise gr.Error("Something went wrong here. Try again.", print_exception=False) from error

        return run

    def fit(source: str, exhibit: Exhibit | None) -> tuple[Any, ...]:
        try:
            exhibit = Exhibit.fit(read_source(source or ""))
        except ValueError as error:
            return (exhibit, cards.message(str(error)), *[gr.skip()] * (4 + len(buttons)))
        return exhibit, "", *shown(exhibit), waiting, empty_changes, *[gr.Button(interactive=True)] * len(buttons)

    def shown(exhibit: Exhibit) -> tuple[str, str]:
        return cards.network_card(exhibit), cards.edit_card(exhibit)

    def read(exhibit: Exhibit | None) -> tuple[Any, ...]:
        if exhibit is None:  # what came before had an error
            return gr.skip(), gr.skip()
        exhibit = exhibit.read(models)
        return exhibit, cards.reading_card(exhibit)

    def edit(name: str) -> Callable[..., Any]:
        def run(exhibit: Exhibit | None) -> tuple[Any, ...]:
            exhibit = _require(exhibit).edited(models, name)
            return exhibit, *shown(exhibit)

        return run

    def restore(exhibit: Exhibit | None) -> tuple[Any, ...]:
        exhibit = _require(exhibit).restored()
        return exhibit, *shown(exhibit)

    def scramble(move: Callable[..., Exhibit]) -> Callable[..., Any]:
        def run(exhibit: Exhibit | None) -> tuple[Any, ...]:
            before = _require(exhibit).read(models)
            after = move(before, seed=secrets.randbits(31)).read(models)
            changes = cards.changes_card(before, after, after.changes(before))
            return after, *shown(after), cards.reading_card(after), changes

        return run

    def button(label: str, name: str) -> Any:
        """One that waits for a network."""
        return gr.Button(label, interactive=False, elem_id=f"nf-{name}", min_width=70)

    waiting = cards.empty_card("Reading the weights …")
    empty_changes = cards.empty_card("Press a button: the numbers of your network change. Does anything else?")

    with gr.Blocks(title="neuralfunctionals", analytics_enabled=False, fill_width=True) as page:
        state = gr.State(None)
        source = gr.Textbox(visible=False)
        gr.HTML(_INTRO, elem_id="nf-intro")
        with gr.Row(elem_classes="nf-row", equal_height=True):
            with gr.Column(elem_classes="nf-card", scale=4, min_width=300):
                gr.HTML(_title(1, "Draw a digit", "with the mouse or a finger, or pick one"))
                gr.HTML(_pad(), js_on_load=_PAD_JS.replace("MAX_BYTES", json.dumps(MAX_BYTES)), elem_id="nf-pad")
                fit_button = gr.Button("Turn it into a network", variant="primary", elem_id="nf-fit")
                note = gr.HTML("", elem_id="nf-message")
            with gr.Column(elem_classes="nf-card", scale=7, min_width=300):
                gr.HTML(_title(2, "It becomes a network", "trained while you wait"))
                network = gr.HTML(cards.empty_card("Your digit will appear here as a network."))
        with gr.Row(elem_classes="nf-row", equal_height=True):
            with gr.Column(elem_classes="nf-card", scale=1, min_width=300):
                gr.HTML(_title(3, "Edit the numbers", "and the picture changes"))
                with gr.Row(elem_classes="nf-buttons"):
                    editors = {name: button(_EDIT_LABELS.get(name, name), name) for name in models.editors}
                    undo = button("Undo all", "undo")
                image = gr.HTML(cards.empty_card("A trained editor will change the weights, and so the picture."))
            with gr.Column(elem_classes="nf-card", scale=1, min_width=300):
                gr.HTML(_title(4, "Read the numbers", "which digit is it?"))
                reading = gr.HTML(cards.empty_card("A trained reader will tell the digit from the weights."))
            with gr.Column(elem_classes="nf-card", scale=1, min_width=300):
                gr.HTML(_title(5, "Scramble the numbers", "and nothing else changes"))
                gr.HTML(
                    "<p class='nf-note'>The neurons of a layer have no order: swap two, and the network computes the "
                    "same. Nor does a sine care which way it swings. Networks that read weights must know this.</p>"
                )
                with gr.Row(elem_classes="nf-buttons"):
                    shuffle = button("Shuffle neurons", "shuffle")
                    flip = button("Flip signs", "flip")
                changes = gr.HTML(empty_changes, elem_id="nf-changes")

        buttons = [*editors.values(), undo, shuffle, flip]
        # One action at a time: more would only slow each other down.
        options: dict[str, Any] = {"concurrency_id": "actions", "concurrency_limit": 1, "show_progress": "minimal"}
        fitted = fit_button.click(
            guarded(fit),
            [source, state],
            [state, note, network, image, reading, changes, *buttons],
            api_name="fit",
            js="(source, state) => [window.nfPad ? window.nfPad.source() : source, state]",
            **options,
        )
        events = [fitted]
        for name, editor in editors.items():
            events.append(editor.click(guarded(edit(name)), state, [state, network, image], api_name=name, **options))
        events.append(undo.click(guarded(restore), state, [state, network, image], api_name="undo", **options))
        for number, event in enumerate(events):
            event.success(
                guarded(read), state, [state, reading], api_name="read" if number == 0 else f"read_{number}", **options
            )
        everything = [state, network, image, reading, changes]
        shuffle.click(guarded(scramble(Exhibit.shuffled)), state, everything, api_name="shuffle", **options)
        flip.click(guarded(scramble(Exhibit.flipped)), state, everything, api_name="flip", **options)
    page.queue(max_size=QUEUE_SIZE, default_concurrency_limit=1)
    page.state_session_capacity = SESSIONS
    return page


def theme() -> Any:
    """Fonts of the reader's own machine: nothing is loaded from elsewhere."""
    import gradio as gr

    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    return gr.themes.Base(primary_hue="orange", neutral_hue="stone", font=fonts, font_mono=mono)


def _require(exhibit: Exhibit | None) -> Exhibit:
    if exhibit is None:
        raise UserError("There is no network yet: draw a digit and turn it into one first.")
    return exhibit


def _title(number: int, title: str, subtitle: str) -> str:
    return f'<h2 class="nf-title"><span>{number}</span>{title}<small>{subtitle}</small></h2>'


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
