"""The picture of the guide to the web page: a drawn digit, edited and shuffled, in a real browser.

nf serve --port 7860 --no-browser &
python docs/figures/serve.py http://127.0.0.1:7860 docs/pictures/serve.png
"""

from __future__ import annotations

import io
import shutil
import sys

from PIL import Image
from playwright.sync_api import sync_playwright

STROKE = [(92, 84), (140, 62), (188, 90), (178, 133), (132, 148), (184, 166), (192, 206), (144, 230), (92, 210)]


def main(url: str, out: str) -> None:
    """Uses the page at this address as people do, and writes what it shows."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1240, "height": 1000}, color_scheme="light")
        page.set_default_timeout(120_000)
        page.goto(url)
        page.wait_for_function("() => window.nfPad !== undefined")
        box = page.locator("#nf-pad canvas").bounding_box()
        assert box is not None
        scale = box["width"] / 280
        places = [(box["x"] + x * scale, box["y"] + y * scale) for x, y in STROKE]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=8)
        page.mouse.up()
        page.click("#nf-fit")
        page.wait_for_selector("#nf-class")
        page.click("#nf-dilate")
        page.wait_for_selector("text=now: thicker")
        page.click("#nf-shuffle")
        page.wait_for_selector("#nf-verdict")
        page.wait_for_timeout(500)
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        browser.close()
    picture.save(out, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
