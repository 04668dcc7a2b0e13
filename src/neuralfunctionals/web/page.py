"""The page: its tabs, its style: `build_page`, `theme`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neuralfunctionals.web import cnn_tab, digit_tab
from neuralfunctionals.web.exhibit import Models

QUEUE_SIZE = 1000
"""Requests that may wait, and are told their place in line; more are told that the page is busy."""
SESSIONS = 400
"""Visitors whose networks are kept, at about 0.6 MB each; the longest unseen is forgotten."""

CSS = Path(__file__).with_name("page.css").read_text()


def build_page(models: Models) -> Any:
    """The page for these models, a `gradio.Blocks`."""
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
    """Fonts of the reader's own machine: nothing is loaded from elsewhere."""
    import gradio as gr

    fonts = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
    mono = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]
    return gr.themes.Base(primary_hue="orange", neutral_hue="stone", font=fonts, font_mono=mono)
