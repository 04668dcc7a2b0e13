"""The site builds without a warning, loads nothing from elsewhere, and all its links lead somewhere."""

import importlib
import inspect
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from documents import ROOT
from neuralfunctionals.cli import COMMANDS

pytestmark = pytest.mark.slow
PARTS = ("layers", "models", "inr", "data", "tasks", "runs", "report", "testing", "weight_space")
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
"""Tags that make a browser load something, and where they say what."""


class Page(HTMLParser):
    """What a page loads, where it leads, and the places in it."""

    def __init__(self, file):
        super().__init__()
        self.file, self.loads, self.links, self.places = file, [], [], set()
        self.text = file.read_text()
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if attributes.get("id"):
            self.places.add(attributes["id"])
        if tag == "link" and attributes.get("rel") not in ("index", "search", "next", "prev", "canonical"):
            self.loads.append(attributes["href"])
        if attributes.get(LOADED.get(tag, "")):
            self.loads.append(attributes[LOADED[tag]])
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("sphinx", "furo", "myst_parser", "latex2mathml"):
        pytest.importorskip(package, reason="install the extra 'docs' to build the site")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-b", "html"]
    result = subprocess.run(
        [*command, "-d", str(out / "doctrees"), str(ROOT / "docs"), str(out / "html")], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return {file.relative_to(out / "html").as_posix(): Page(file) for file in (out / "html").rglob("*.html")}


def is_outside(address):
    return bool(urlsplit(address).netloc)


def test_nothing_is_loaded_from_elsewhere(site):
    for name, page in site.items():
        assert page.loads, name
        assert not [address for address in page.loads if is_outside(address)], name
    folder = site["index.html"].file.parent
    styles = list(folder.rglob("*.css"))
    assert styles
    for file in styles:
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", file.read_text()), file


def test_links_and_pictures_lead_to_what_exists(site):
    folder = site["index.html"].file.parent
    for name, page in site.items():
        for address in page.loads + page.links:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            file = (page.file.parent / unquote(parts.path)).resolve() if parts.path else page.file
            assert file.is_file(), f"{name} leads to {address}"
            if parts.fragment and file.suffix == ".html":
                target = site[file.relative_to(folder.resolve()).as_posix()]
                assert unquote(parts.fragment) in target.places, f"{name} leads to {address}"


def test_every_page_of_the_guide_is_in_the_navigation(site):
    links = {urlsplit(link).path for link in site["index.html"].links}
    pages = [*(ROOT / "docs/guide").glob("*.md"), *(ROOT / "docs/tutorials").glob("*.md")]
    assert len(pages) >= 8
    for page in pages:
        assert page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() in links


def test_every_public_name_has_its_place(site):
    places = set().union(*(page.places for name, page in site.items() if name.startswith("api/")))
    for part in PARTS:
        module = importlib.import_module(f"neuralfunctionals.{part}")
        for name in module.__all__:
            assert places & {f"neuralfunctionals.{part}.{name}", f"neuralfunctionals.{name}"}, f"{part}.{name}"


def test_equations_are_shown_without_a_script(site):
    layers = site["api/layers.html"].text
    attention = layers[layers.index('id="neuralfunctionals.layers.WeightSpaceSelfAttention"') :]
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in attention
    for name, page in site.items():
        assert not [address for address in page.loads if "mathjax" in address.lower()], name
        assert not re.search(r"\$\$|\\mathrm", re.sub(r"<pre>.*?</pre>", "", page.text, flags=re.S)), name


def test_every_command_is_explained_by_its_own_help(site):
    text = site["commands.html"].text
    for name in COMMANDS:
        assert f"usage: nf {name} [-h]" in text


def test_docstrings_that_are_shown_say_something(site):
    for part in PARTS:
        module = importlib.import_module(f"neuralfunctionals.{part}")
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                assert inspect.getdoc(value), name


@pytest.mark.parametrize("name", ["symmetry", "attention", "inr2array"])
def test_pictures_of_the_idea_are_drawn_by_code(name, tmp_path):
    picture = tmp_path / f"{name}.png"
    command = [sys.executable, str(ROOT / f"docs/figures/{name}.py"), str(picture)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert picture.stat().st_size > 50_000
    assert f"pictures/idea_{name}.png" in (ROOT / "docs/idea.md").read_text()
