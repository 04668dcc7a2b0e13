"""The page, with its tabs and style: `build_page`, `theme`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuralfunctionals.web import cnn_tab, digit_tab
from neuralfunctionals.web.exhibit import Models

QUEUE_SIZE = 1000
"""Maximum number of waiting requests; beyond it, the page says that it is busy."""
SESSIONS = 400
"""Maximum number of visitors whose networks are kept, at about 0.6 MB each; the least recent is dropped."""

CSS = Path(__file__).with_name("page.css").read_text()


def build_page(models: Models) -> Any:
    """Builds the page for these models, a `gradio.Blocks`."""
    import gradio as gr

    with gr.Blocks(title="neuralfunctionals", analytics_enabled=False, fill_width=True) as page:
        gr.HTML("<h1>Networks that read networks</h1>", elem_id="nf-head")
        with gr.Tabs(elem_id="nf-tabs"):
            with gr.Tab("Digits", elem_id="nf-tab-digit"):
                digit_tab.build(models)
            with gr.Tab("Classifiers", elem_id="nf-tab-cnn"):
                cnn_tab.build(models)
    page.queue(max_size=QUEUE_SIZE, default_concurrency_limit=1)
    page.state_session_capacity = SESSIONS
    return page


def theme() -> Any:
    """The theme, with system fonts: nothing is loaded from other servers."""
    import gradio as gr

    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    return gr.themes.Base(primary_hue="orange", neutral_hue="stone", font=fonts, font_mono=mono)
