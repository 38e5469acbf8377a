"""Sphinx's settings for the site. `make book` builds it from build/book/stage."""

import re
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

_FUNCTION = re.compile(r"<mi>(exp|ln|log|max|min|sin)</mi>")  # they stand too close otherwise
BOOK = Path(__file__).resolve().parent

project = "Distributed Training Lab"
html_title = "Distributed Training Lab"  # a longer one is wider than a phone
author = "the Distributed Training Lab"
language = "en"

extensions = ["myst_nb", "sphinx_design", "sphinx_copybutton"]
exclude_patterns = ["files/**", "static/**"]  # pages include these files

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_dmath_allow_digits = False  # "$2 an hour and $3" is no formula
myst_dmath_allow_space = False
html_math_renderer = "mathml"  # the default loads a script from another host
myst_heading_anchors = 4
nb_execution_mode = "off"  # pages show what is stored
nb_ipywidgets_js: dict[str, str] = {}  # the default loads scripts from other hosts
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
suppress_warnings = ["mystnb.unknown_mime_type"]

html_theme = "furo"
html_static_path = [str(BOOK / "static")]  # and static/ of the stage: see below
html_search_scorer = str(BOOK / "static" / "scorer.js")
html_css_files = ["book.css", "live/live.css"]
html_js_files = [("live/live.mjs", {"type": "module"})]
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_show_copyright = False
html_permalinks_icon = "#"
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
html_favicon = str(BOOK / "static" / "icon.svg")
pygments_style = "github-light-high-contrast"  # furo brings this style with it
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp"


def _formula(page: Any, node: Any) -> None:
    """Write a formula into a page. ValueError if a part of it has no MathML."""
    is_block = node.tagname == "math_block"
    html = convert(node.astext(), display="block" if is_block else "inline")
    html = _FUNCTION.sub(r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', html)
    if "\\" in html:
        raise ValueError(f"{node.astext()!r} has a command that latex2mathml does not know")
    page.body.append(f'<div class="math">{html}</div>' if is_block else html)
    raise SkipNode


def setup(app: Any) -> None:
    """Add the pictures of the staged outputs, and formulas as MathML, which needs no script."""
    formula = (_formula, None)
    app.add_html_math_renderer("mathml", formula, formula)
    app.config.html_static_path.append(str(Path(app.srcdir) / "static"))
