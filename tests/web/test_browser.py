"""The page in a real browser: drawn with the mouse, read from the screen."""

import io
import os
import re
import shutil

import pytest
import torch
from test_digits import huge_png

from neuralfunctionals.cnn.settings import build_cnn
from neuralfunctionals.inr import Siren

FLAGS = (
    "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync "
    "--no-first-run"
).split()
STROKE = [(90, 80), (140, 60), (190, 90), (180, 135), (130, 150), (185, 165), (195, 205), (145, 230), (90, 210)]
"""A three."""


@pytest.fixture(scope="module")
def browser():
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        reason = "There is no browser here: install chromium (apt-get install chromium)."
        if os.environ.get("NF_REQUIRE_BROWSER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield opened
        opened.close()


def open_page(browser, server, width=1280, height=1000):
    """A page, and the addresses of all that it loads."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(120_000)
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(error))
    page.goto(server.url)
    page.wait_for_selector("#nf-pad canvas")
    page.wait_for_function("() => window.nfPad !== undefined")
    return page, requests, errors


def draw(page):
    box = page.locator("#nf-pad canvas").bounding_box()
    scale = box["width"] / 280
    places = [(box["x"] + x * scale, box["y"] + y * scale) for x, y in STROKE]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=6)
    page.mouse.up()


def weights(page):
    return page.eval_on_selector_all("#nf-weights img", "images => images.map(image => image.src)")


def bars(page):
    return page.inner_text("#nf-bars")


@pytest.mark.slow
def test_draw_fit_edit_read_and_scramble(browser, server):
    page, requests, errors = open_page(browser, server)
    assert page.is_disabled("#nf-shuffle")
    draw(page)
    page.click("#nf-fit")
    page.wait_for_selector("#nf-class")
    assert float(page.inner_text("#nf-psnr").split()[0]) > 38
    assert page.inner_text("#nf-class") in set("0123456789")
    assert len(bars(page).split()) == 20
    fitted = weights(page)
    assert len(set(fitted)) == 5

    before = page.inner_html("#nf-bars")
    page.click("#nf-dilate")
    page.wait_for_selector("text=now: thicker")
    page.wait_for_function("(old) => document.querySelector('#nf-bars').innerHTML !== old", arg=before)
    edited = weights(page)
    pictures = page.eval_on_selector_all("#nf-image img", "images => images.map(image => image.src)")
    assert edited != fitted
    assert pictures[0] != pictures[1]

    seen = bars(page)
    for button, word in (("#nf-shuffle", "neurons shuffled"), ("#nf-flip", "signs flipped")):
        before = weights(page)
        page.click(button)
        page.wait_for_function("(w) => document.querySelector('#nf-history').innerText.includes(w)", arg=word)
        assert all(new != old for new, old in zip(weights(page), before, strict=True))
        assert page.inner_text("#nf-change-weights").endswith("scrambled")
        for what, unit in (("image", "grey levels"), ("probabilities", "%"), ("latents", "%")):
            line = page.inner_text(f"#nf-change-{what}")
            assert line.endswith("unchanged"), line
            assert float(re.search(rf"([\d.]+) {unit}", line)[1]) < 0.5
        assert "no prediction changed" in page.inner_text("#nf-verdict")
        assert bars(page) == seen

    page.click("#nf-undo")
    page.wait_for_function("() => document.querySelector('#nf-history').innerText === ''")
    assert weights(page) == fitted
    hosts = {url.split("/")[2].split(":")[0] for url in requests if not url.startswith(("data:", "blob:"))}
    assert hosts == {"127.0.0.1"}
    assert not errors
    page.close()


@pytest.mark.slow
def test_bad_uploads_are_told_on_the_page_and_samples_still_work(browser, server):
    page, _, errors = open_page(browser, server)
    bad = {
        "empty.png": (b"", "empty (0 bytes)"),
        "text.png": (b"hello", "not a picture"),
        "huge.png": (huge_png(10_000, 10_000), "100 megapixels"),
    }
    for name, (content, reason) in bad.items():
        page.set_input_files("#nf-pad input", {"name": name, "mimeType": "image/png", "buffer": content})
        page.wait_for_selector(f"#nf-message .nf-message:has-text('{reason}')")
    page.set_input_files("#nf-pad input", {"name": "x.png", "mimeType": "image/png", "buffer": bytes(6 * 2**20)})
    page.wait_for_selector(".nf-warning:has-text('too large')")
    page.click("#nf-pad [data-sample='4']")
    page.wait_for_selector("#nf-class")
    assert page.locator("#nf-message .nf-message").count() == 0
    assert not errors
    page.close()


def own_file(module, name="own.pth"):
    """A network as a file to choose."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    return {"name": name, "mimeType": "application/octet-stream", "buffer": file.getvalue()}


@pytest.mark.slow
def test_own_networks_are_shown_read_edited_and_scrambled(browser, server):
    page, _, errors = open_page(browser, server)
    page.set_input_files("#nf-own input[type=file]", own_file(Siren((2, 64, 1), seed=0)))
    page.wait_for_selector("#nf-message .nf-message:has-text('its layers are 2->64, 64->1')")
    too_large = {"name": "x.pth", "mimeType": "application/octet-stream", "buffer": bytes(2**20 + 1)}
    page.set_input_files("#nf-own input[type=file]", too_large)
    page.wait_for_selector("#nf-own .nf-warning:has-text('too large')")

    page.set_input_files("#nf-own input[type=file]", own_file(Siren(seed=0)))
    page.wait_for_selector("#nf-given")
    page.wait_for_selector("#nf-answer:has-text('sure')")
    assert page.locator("#nf-message .nf-message").count() == 0
    given = weights(page)
    page.select_option("#nf-own select", "dws")  # the same file is read again
    page.wait_for_function("(old) => document.querySelector('#nf-weights img').src !== old", arg=given[0])
    page.click("#nf-erode")
    page.wait_for_selector("text=now: thinner")
    page.click("#nf-shuffle")
    page.wait_for_selector("#nf-verdict:has-text('no prediction changed')")
    assert not errors
    page.close()


@pytest.mark.slow
def test_files_can_be_dropped(browser, server):
    page, _, errors = open_page(browser, server)
    drop(page, "#nf-own .nf-drop", own_file(Siren(seed=1)))
    page.wait_for_selector("#nf-given")
    page.click("[role=tab]:has-text('Classifiers')")
    page.wait_for_function("() => window.nfCnn !== undefined")
    drop(page, "#nf-cnn .nf-drop", own_file(build_cnn()))
    page.wait_for_selector("#nf-truth:has-text('not known here')")
    drop(page, "#nf-cnn .nf-drop", own_file(build_cnn(3)))
    page.wait_for_selector("#nf-cnn-message .nf-message:has-text('its layers are 3->16')")
    assert not errors
    page.close()


def drop(page, place, file):
    """Drops a file as the browser does after a drag."""
    code = """([place, name, bytes]) => {
        const carried = new DataTransfer();
        carried.items.add(new File([Uint8Array.from(bytes)], name));
        document.querySelector(place).dispatchEvent(
            new DragEvent("drop", {dataTransfer: carried, bubbles: true, cancelable: true}));
    }"""
    page.evaluate(code, [place, file["name"], list(file["buffer"])])


# Pictures, buttons and fields of the tab that is open, and how far each sticks out of its card.
STICKING_OUT = """() => [...document.querySelectorAll(".nf-card")].filter(card => card.offsetParent).flatMap(card =>
    [...card.querySelectorAll("img, button, label, input:not([type=file]), select, canvas, table, p")]
        .filter(part => part.offsetParent)
        .map(part => [part.getBoundingClientRect(), card.getBoundingClientRect(), part.outerHTML.slice(0, 80)])
        .filter(([part, card]) => part.right > card.right + 0.5 || part.left < card.left - 0.5)
        .map(([, , text]) => text))"""
SIZES = "buttons => buttons.map(button => button.getBoundingClientRect()).map(box => Math.min(box.width, box.height))"


@pytest.mark.slow
@pytest.mark.parametrize("width", [375, 768, 1400])
def test_both_tabs_fit_the_screen_and_can_be_pressed_with_a_finger(browser, server, width):
    page, _, errors = open_page(browser, server, width=width, height=844)
    page.click("#nf-pad [data-sample='7']")
    page.wait_for_selector("#nf-answer:has-text('sure')")
    page.click("#nf-shuffle")
    page.wait_for_selector("#nf-verdict")
    fits(page, width)

    page.click("[role=tab]:has-text('Classifiers')")
    page.wait_for_function("() => window.nfCnn !== undefined")
    page.click("#nf-cnn [data-sample='2']")
    page.wait_for_selector("#nf-predicted:has-text('%')")
    assert page.inner_text("#nf-measured") == "82%"
    before = page.inner_html("#nf-cnn-weights")
    page.click("#nf-cnn-shuffle")
    page.wait_for_selector("#nf-cnn-verdict:has-text('stayed the same')")
    assert page.inner_html("#nf-cnn-weights") != before
    fits(page, width)
    assert not errors
    page.close()


def fits(page, width):
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(STICKING_OUT) == []
    pressed = "[data-sample]:visible, .nf-tools label:visible, [role=tab]:visible"
    assert min(page.locator(pressed).evaluate_all(SIZES)) >= 44
