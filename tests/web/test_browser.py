"""The page in a real browser: drawn with the mouse, read from the screen."""

import os
import re
import shutil

import pytest
from test_digits import huge_png

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
        assert "noticed nothing" in page.inner_text("#nf-verdict")
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
    page.click("[data-sample='4']")
    page.wait_for_selector("#nf-class")
    assert page.locator("#nf-message .nf-message").count() == 0
    assert not errors
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 820, 1600])
def test_nothing_sticks_out_of_the_screen(browser, server, width):
    page, _, _ = open_page(browser, server, width=width, height=844)
    page.click("[data-sample='7']")
    page.wait_for_selector("#nf-class")
    page.click("#nf-shuffle")
    page.wait_for_selector("#nf-verdict")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()
