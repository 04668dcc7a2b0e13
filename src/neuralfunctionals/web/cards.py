"""The cards of the first tab, as HTML: `network_card`, `edit_card`, `reading_card`, `changes_card`."""

from __future__ import annotations

from html import escape

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from neuralfunctionals.web.exhibit import SPEC, Changes, Exhibit
from neuralfunctionals.web.pictures import grey_url, signed_url

# Axes: H rows, W columns, K classes.

EDIT_WORDS = {"dilate": "thicker", "erode": "thinner", "gradient": "outlines"}
"""Display names of the edits."""
_STEP_WORDS = {**EDIT_WORDS, "shuffle": "neurons shuffled", "flip": "signs flipped"}
_COLUMNS = {
    (1, "weight"): "layer 1",
    (1, "bias"): "bias",
    (2, "weight"): "layer 2",
    (2, "bias"): "bias",
    (3, "weight"): "layer 3",
}


def figure(url: str, caption: str, kind: str = "", alt: str = "") -> str:
    """A picture with a caption below."""
    image = f'<img src="{url}" alt="{escape(alt or caption)}">'
    return f'<figure class="nf-figure {kind}">{image}<figcaption>{escape(caption)}</figcaption></figure>'


def pair(before: str, after: str, *more: str, identity: str = "") -> str:
    """Two figures with an arrow between them, and optionally more after them."""
    attribute = f' id="{identity}"' if identity else ""
    return f'<div class="nf-pair"{attribute}>{before}<span class="nf-arrow">→</span>{after}{"".join(more)}</div>'


def empty_card(text: str) -> str:
    """A placeholder for a card without content."""
    return f'<div class="nf-empty">{escape(text)}</div>'


def message(text: str) -> str:
    """A message to the user."""
    return f'<div class="nf-message" role="alert">{escape(text)}</div>' if text else ""


def title(number: int, text: str, subtitle: str) -> str:
    """The head of a card."""
    return f'<h2 class="nf-title"><span>{number}</span>{escape(text)}<small>{escape(subtitle)}</small></h2>'


def network_card(exhibit: Exhibit) -> str:
    """The fit of the network, and its current weights."""
    history = f"<span id='nf-history'>{_history(exhibit)}</span>"
    return (
        (_own_network(exhibit) if exhibit.digit is None else _film(exhibit, exhibit.digit))
        + _weights(exhibit)
        + "<p class='nf-note'>Each row is a neuron and each cell is one number: blue is negative, orange is positive."
        + f"{history}</p>"
    )


def _film(exhibit: Exhibit, digit: UInt8[np.ndarray, "H W"]) -> str:
    film = "".join(
        figure(
            grey_url(frame.image), f"step {frame.steps}", "nf-frame", f"picture of the network at step {frame.steps}"
        )
        for frame in exhibit.film
    )
    target = figure(grey_url(digit), "target", "nf-frame nf-target", "your digit")
    return (
        f'<div class="nf-film">{film}<span class="nf-equals">≈</span>{target}</div>'
        f"<p class='nf-text'>This network has {SPEC.num_entries:,} numbers. It has learned one thing: how bright each "
        f"point of your digit is. It reproduces the digit with a PSNR of <b id='nf-psnr'>{exhibit.psnr_db:.1f} dB</b>; "
        "at 40 dB you cannot see the difference. From here on, <b>these numbers are the picture</b>:</p>"
    )


def _own_network(exhibit: Exhibit) -> str:
    shown = figure(grey_url(_first_image(exhibit)), "its picture", "nf-own", "picture of your network")
    return (
        f"<div class='nf-given'>{shown}<p class='nf-text'>This is <b id='nf-given'>your network</b>, and the picture "
        "that it shows. If you see only noise, its frequency or convention is probably different: change the two "
        f"fields under its name, and it is read again. Its {SPEC.num_entries:,} numbers:</p></div>"
    )


def _first_image(exhibit: Exhibit) -> Float[Tensor, "H W"]:
    return exhibit.film[-1].image if exhibit.film else exhibit.restored().image


def _history(exhibit: Exhibit) -> str:
    words = [_STEP_WORDS.get(step, step) for step in exhibit.steps[-6:]]
    return f" Done so far: {', '.join(words)}." if words else ""


def _weights(exhibit: Exhibit) -> str:
    parts = []
    for (layer, kind), words in _COLUMNS.items():
        url, width = _weight_picture(exhibit, layer, kind)
        image = f'<img src="{url}" alt="{kind}s of layer {layer}" data-group="{kind}{layer}">'
        caption = f"<figcaption>{words}</figcaption>"
        parts.append(f'<figure class="nf-figure nf-weights" style="--columns:{width}">{image}{caption}</figure>')
    return f'<div class="nf-matrices" id="nf-weights">{"".join(parts)}</div>'


def _weight_picture(exhibit: Exhibit, layer: int, kind: str) -> tuple[str, int]:
    """A picture of one weight matrix or bias, one row per hidden neuron, in the colour scale of the fitted network."""
    now, fitted = (
        (n.weights if kind == "weight" else n.biases)[layer - 1][0, ..., 0] for n in (exhibit.network, exhibit.fitted)
    )
    now = now[:, None] if kind == "bias" else now.T if layer == 3 else now
    return signed_url(now, 1.2 * float(fitted.abs().quantile(0.95))), now.shape[1]


def edit_card(exhibit: Exhibit) -> str:
    """The picture before and after the edits."""
    now = figure(grey_url(exhibit.image), _now(exhibit), alt="current picture of the network")
    fitted = figure(grey_url(_first_image(exhibit)), "as given" if exhibit.digit is None else "as fitted")
    change = float((exhibit.network.tensor - exhibit.fitted.tensor).abs().mean())
    scale = float(exhibit.fitted.tensor.abs().mean())
    edited = any(step in EDIT_WORDS for step in exhibit.steps)
    symmetric = any(step not in EDIT_WORDS for step in exhibit.steps)
    text = (
        f"The editor saw only the numbers. It changed them by {change / scale:.0%} on average."
        if edited and not symmetric
        else "An editor sees only the numbers and returns new ones."
    )
    return f'{pair(fitted, now, identity="nf-image")}<p class="nf-note">{text}</p>'


def _now(exhibit: Exhibit) -> str:
    edits = [EDIT_WORDS[step] for step in exhibit.steps if step in EDIT_WORDS]
    return ("now: " + ", ".join(edits[-3:])) if edits else "now"


def reading_card(exhibit: Exhibit) -> str:
    """The class and the latent array, predicted from the weights."""
    reading = exhibit.reading
    assert reading is not None
    best = int(reading.probabilities.argmax())
    bars = "".join(
        f'<div class="nf-bar{" nf-best" if k == best else ""}"><span>{k}</span>'
        f'<i style="--share:{p:.4f}"></i><span>{p:.0%}</span></div>'
        for k, p in enumerate(reading.probabilities.tolist())
    )
    latents = signed_url(reading.latents, float(reading.latents.abs().quantile(0.98)))
    rows, columns = reading.latents.shape
    return (
        f"{_answer(reading.probabilities)}"
        f'<div class="nf-bars" id="nf-bars">{bars}</div>'
        f'<div class="nf-latent" id="nf-latent"><figure class="nf-figure nf-wide"><img src="{latents}" alt="latents">'
        f"<figcaption>a summary of the weights: {rows} by {columns} numbers</figcaption></figure>"
        f"{figure(grey_url(reading.reconstruction), 'drawn from it', 'nf-small')}</div>"
    )


def _answer(probabilities: Float[Tensor, "K"]) -> str:
    """The class, and how sure the classifier is."""
    (first, second), (best, other) = (values.tolist() for values in probabilities.topk(2))
    if first >= 0.9:
        doubt = "No other digit comes close."
    else:
        how = "It is fairly sure, but" if first >= 0.7 else "It is not sure:" if first >= 0.4 else "It is guessing:"
        doubt = f"{how} it could also be {article(other)} {other} ({percent(second)})."
    return (
        f'<p class="nf-answer" id="nf-answer">It reads {article(best)} <b class="nf-class" id="nf-class">{best}</b>, '
        f'<span id="nf-sure">{percent(first)} sure</span>.</p><p class="nf-note" id="nf-doubt">{doubt}</p>'
    )


def article(number: int) -> str:
    """The indefinite article of a number below a hundred, as it is spoken.

    Example:
        >>> [f"{article(n)} {n}" for n in (1, 8, 10, 11, 18, 80)]
        ['a 1', 'an 8', 'a 10', 'an 11', 'an 18', 'an 80']
    """
    return "an" if number in (11, 18) or str(number).startswith("8") else "a"


def percent(share: float) -> str:
    """Formats a probability, but never as 0% or 100%.

    Example:
        >>> percent(0.9996), percent(0.97), percent(0.001)
        ('more than 99%', '97%', 'less than 1%')
    """
    return "more than 99%" if share > 0.994 else "less than 1%" if share < 0.006 else f"{share:.0%}"


def changes_card(before: Exhibit, after: Exhibit, changes: Changes) -> str:
    """What a symmetry changed, and what stayed the same."""
    rows = [
        ("weights", f"{changes.weights:.2f}", "scrambled" if changes.weights > 1e-3 else "unchanged", "weights"),
        _row("picture", "grey levels", changes.image * 127.5, changes.image < 1 / 255, "image"),
        _row("probabilities", "%", changes.probabilities * 100, changes.probabilities < 1e-3, "probabilities"),
        _row("summary", "%", changes.latents * 100, changes.latents < 1e-3, "latents"),
    ]
    lines = "".join(
        f'<tr id="nf-change-{name}"><th>{what}</th><td>{number}</td><td><b class="nf-{verdict}">{verdict}</b></td></tr>'
        for what, number, verdict, name in rows
    )
    old, new = (_weight_picture(exhibit, 2, "weight")[0] for exhibit in (before, after))
    still = figure(grey_url(after.image), "still shows", alt="picture of the network after")
    verdict = (
        "The numbers are different, but it is the same function: no prediction changed."
        if changes.same_answers
        else "One of the predictions changed: its model was not built or trained for this symmetry."
    )
    return (
        f'{pair(figure(old, "before"), figure(new, "after"), still)}<table class="nf-changes">'
        f"<thead><tr><th></th><th>largest change</th><th></th></tr></thead><tbody>{lines}</tbody></table>"
        f'<p class="nf-text" id="nf-verdict">{verdict}</p>'
    )


def _row(what: str, unit: str, value: float, same: bool, name: str) -> tuple[str, str, str, str]:
    """A row of the table; small changes come from 32-bit rounding and are shown too."""
    number = np.format_float_positional(value, precision=1 if value < 0.1 else 3, fractional=False, trim="-")
    return what, f"{number} {unit}", "unchanged" if same else "changed", name
