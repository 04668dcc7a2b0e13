"""The second tab of the page: predicts the accuracy of an image classifier from its weights: `build`."""

from __future__ import annotations

import secrets
from typing import Any

from neuralfunctionals.errors import UserError
from neuralfunctionals.web import cards, cnn_cards
from neuralfunctionals.web.actions import OPTIONS, guarded, script
from neuralfunctionals.web.cnns import CNN_SPEC, Cnn, samples
from neuralfunctionals.web.exhibit import Models
from neuralfunctionals.web.uploads import MAX_NETWORK_BYTES

_INTRO = (
    "<p>How good is a classifier? Usually you test it on images. Here a trained model predicts its accuracy <b>from "
    f"the {CNN_SPEC.num_entries:,} weights alone</b>. The classifiers are small convolutional networks that sort "
    "pictures of clothes into ten classes. Some were trained well, some badly, and some learned nothing at all.</p>"
)


def build(models: Models) -> None:
    """Adds the tab to the open `gradio.Blocks`."""
    import gradio as gr

    def open_cnn(source: str, cnn: Cnn | None) -> tuple[Any, ...]:
        try:
            cnn = Cnn.from_source(source or "").read(models.predictor)
        except ValueError as error:
            return cnn, cards.message(str(error)), *[gr.skip()] * 4
        return cnn, "", *shown(cnn), empty_shuffle, gr.Button(interactive=True)

    def shown(cnn: Cnn) -> tuple[str, str]:
        return cnn_cards.weights_card(cnn), cnn_cards.prediction_card(cnn)

    def shuffle(before: Cnn | None) -> tuple[Any, ...]:
        if before is None:
            raise UserError("There is no network yet: pick one first.")
        after = before.shuffled(seed=secrets.randbits(31)).read(models.predictor)
        return after, *shown(after), cnn_cards.shuffle_card(before, after)

    empty_shuffle = cards.empty_card("Press the button: does the prediction change?")

    state = gr.State(None)
    source = gr.Textbox(visible=False)
    gr.HTML(_INTRO, elem_classes="nf-intro")
    with gr.Row(elem_classes=["nf-row", "nf-wide-row"], equal_height=True):
        with gr.Column(elem_classes="nf-card", scale=4, min_width=300):
            gr.HTML(cards.title(1, "Pick a classifier", "by the filters of its first layer"))
            gr.HTML(_choice(), js_on_load=script("cnn.js", MAX_NETWORK_BYTES), elem_id="nf-cnn")
            opener = gr.Button("Open", elem_id="nf-cnn-open", elem_classes="nf-hidden")
            note = gr.HTML("", elem_id="nf-cnn-message")
        with gr.Column(elem_classes="nf-card", scale=7, min_width=300):
            gr.HTML(cards.title(2, "Its weights", "all that the model sees"))
            weights = gr.HTML(cards.empty_card("The weights of the classifier will appear here."))
    with gr.Row(elem_classes="nf-row", equal_height=True):
        with gr.Column(elem_classes="nf-card", scale=1, min_width=300):
            gr.HTML(cards.title(3, "How good is it?", "predicted from the weights"))
            prediction = gr.HTML(cards.empty_card("A trained model will predict its accuracy."))
        with gr.Column(elem_classes="nf-card", scale=1, min_width=300):
            gr.HTML(cards.title(4, "Shuffle its neurons", "and nothing changes"))
            with gr.Row(elem_classes="nf-buttons"):
                shuffler = gr.Button("Shuffle neurons", interactive=False, elem_id="nf-cnn-shuffle", min_width=70)
            shuffled = gr.HTML(empty_shuffle)

    opener.click(
        guarded(open_cnn),
        [source, state],
        [state, note, weights, prediction, shuffled, shuffler],
        api_name="open_cnn",
        js="(source, state) => [window.nfCnn ? window.nfCnn.source() : source, state]",
        **OPTIONS,
    )
    shuffler.click(guarded(shuffle), state, [state, weights, prediction, shuffled], api_name="shuffle_cnn", **OPTIONS)


def _choice() -> str:
    chosen = "".join(
        f'<button type="button" data-sample="{k}" aria-pressed="false" aria-label="{cnn.name}">'
        f'<img src="{cnn_cards.first_filters(cnn)}" alt=""><span>{cnn.name.split()[-1]}</span></button>'
        for k, cnn in enumerate(samples())
    )
    return (
        f'<div class="nf-choice"><div class="nf-samples nf-cnns">{chosen}</div>'
        '<div class="nf-drop"><p><b>Have a classifier of your own?</b> Drop it here.</p>'
        '<p class="nf-note">A CNN for grey images of ten classes: three convolutions with 16 filters of 3x3, global '
        "pooling, one dense layer. Saved as .pth, .pt or .safetensors.</p>"
        '<div class="nf-tools"><label>Choose a network<input type="file"></label></div>'
        '<div class="nf-warning" role="alert"></div></div></div>'
    )
