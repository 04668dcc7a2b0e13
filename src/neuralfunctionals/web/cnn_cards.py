"""The cards of the second tab, as HTML: `weights_card`, `prediction_card`, `shuffle_card`."""

from __future__ import annotations

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from neuralfunctionals.web.cards import figure, pair, percent
from neuralfunctionals.web.cnns import CNN_SPEC, Cnn
from neuralfunctionals.web.pictures import filters_url, signed_url

# Axes: O outgoing neurons, I incoming neurons, H rows, W columns.


def first_filters(cnn: Cnn) -> str:
    """The sixteen filters of the first layer as one square picture."""
    filters = _filters(cnn, 0)
    return filters_url(rearrange(filters, "(O1 O2) 1 H W -> O1 O2 H W", O2=4), _limit(filters))


def _filters(cnn: Cnn, layer: int) -> Float[Tensor, "O I *_kernel"]:
    return cnn.network.weights[layer][0, ..., 0]


def _limit(values: Tensor) -> float:
    return 1.2 * float(values.abs().quantile(0.95))


def weights_card(cnn: Cnn) -> str:
    """The weights, which are all that the predictor sees."""
    parts = [figure(first_filters(cnn), "layer 1: 16 filters", "nf-filters", "filters of layer 1")]
    for layer in (1, 2):
        filters = _filters(cnn, layer)
        url = filters_url(filters, _limit(filters))
        parts.append(figure(url, f"layer {layer + 1}: 256 filters", "nf-filters", f"filters of layer {layer + 1}"))
    dense = _filters(cnn, 3)
    parts.append(figure(signed_url(dense, _limit(dense)), "output: 10 classes", "nf-filters nf-dense", "output layer"))
    return (
        f'<p class="nf-text">These are the {CNN_SPEC.num_entries:,} numbers of <b id="nf-cnn-name">{cnn.name}</b>. The '
        "model sees only these: it does not run the network, and it sees no image.</p>"
        f'<div class="nf-layers" id="nf-cnn-weights">{"".join(parts)}</div>'
        '<p class="nf-note">Each small square is a filter of 3 by 3 numbers: blue is negative, orange is positive. '
        "Biases are not shown.</p>"
    )


def prediction_card(cnn: Cnn) -> str:
    """The predicted accuracy, and the measured one if it is known."""
    assert cnn.predicted is not None
    if cnn.measured is None:
        verdict = (
            "Its true accuracy is not known here. The model was trained on classifiers of Fashion-MNIST: for networks "
            "trained on anything else, its prediction means little."
        )
    else:
        points = round(100 * abs(cnn.predicted - cnn.measured))
        off = "exactly right, to the percent" if points == 0 else f"off by {points} point{'s' if points > 1 else ''}"
        verdict = (
            f'In fact, it gets <b id="nf-measured">{cnn.measured:.0%}</b> of 300 test images right: the model is {off}.'
        )
    return (
        f'<p class="nf-answer">The model predicts <b class="nf-class" id="nf-predicted">{percent(cnn.predicted)}</b> '
        f'correct: <span id="nf-grade">{_grade(cnn.predicted)}</span>.</p>'
        + _scale(cnn)
        + f'<p class="nf-text" id="nf-truth">{verdict}</p>'
    )


def _grade(accuracy: float) -> str:
    grades = {0.17: "hardly better than guessing", 0.5: "it has learned a little", 0.7: "a fair classifier"}
    return next((words for limit, words in grades.items() if accuracy < limit), "one of the best of its kind")


def _scale(cnn: Cnn) -> str:
    """Predicted and measured accuracy on a scale from 0 to 100%."""
    assert cnn.predicted is not None
    truth = "" if cnn.measured is None else f'<b style="--at:{cnn.measured:.4f}"><span>measured</span></b>'
    return (
        f'<div class="nf-scale" role="img" aria-label="predicted {cnn.predicted:.0%}">'
        f'<i style="--at:{cnn.predicted:.4f}"></i>{truth}</div>'
        '<div class="nf-ticks"><span>0%</span><span>50%</span><span>100%</span></div>'
    )


def shuffle_card(before: Cnn, after: Cnn) -> str:
    """What a shuffle changed, and what stayed the same."""
    assert before.predicted is not None
    assert after.predicted is not None
    change = 100 * abs(after.predicted - before.predicted)
    same = change < 0.1
    amount = "less than 0.0001" if change < 1e-4 else f"{change:.2g}"
    old = figure(first_filters(before), "layer 1 before", "nf-filters")
    new = figure(first_filters(after), "layer 1 after", "nf-filters")
    verdict = (
        "The filters changed places in every layer, and the prediction stayed the same."
        if same
        else "The prediction changed: this model was not built for this symmetry."
    )
    return (
        f'{pair(old, new)}<p class="nf-text" id="nf-cnn-verdict">{verdict} It moved by '
        f'<b class="nf-{"unchanged" if same else "changed"}" id="nf-cnn-change">{amount} percentage points</b>.</p>'
    )
