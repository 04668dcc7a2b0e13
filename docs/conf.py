"""How the site is built: `make docs`. Nothing on a page is loaded from elsewhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from neuralfunctionals import __version__

project = "neuralfunctionals"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "api_pages",
    "command_pages",
    "markdown_docstrings",
    "mathml",
]
exclude_patterns = ["_build", "records"]
nitpicky = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
highlight_language = "sh"  # of blocks that name none

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "neuralfunctionals"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
