"""Sphinx's settings for the site. `make book` builds it from build/book/stage."""

from pathlib import Path
from typing import Any

BOOK = Path(__file__).resolve().parent

project = "Distributed Training Lab"
html_title = "Distributed Training Lab"  # a longer one is wider than a phone
author = "the Distributed Training Lab"
language = "en"

extensions = ["myst_nb", "sphinx_design", "sphinx_copybutton"]
exclude_patterns = ["files/**", "static/**"]  # pages include these files

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # pages show what is stored
nb_ipywidgets_js: dict[str, str] = {}  # the default loads scripts from other hosts
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
suppress_warnings = ["mystnb.unknown_mime_type"]

html_theme = "furo"
html_static_path = [str(BOOK / "static")]  # and static/ of the stage: see below
html_css_files = ["book.css", "live/live.css"]
html_js_files = [("live/live.mjs", {"type": "module"})]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_permalinks_icon = "#"
html_theme_options = {"navigation_with_keys": False, "top_of_page_buttons": []}
html_favicon = str(BOOK / "static" / "icon.svg")
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_exclude = ".linenos, .gp"


def setup(app: Any) -> None:
    """Add the pictures of the staged outputs."""
    app.config.html_static_path.append(str(Path(app.srcdir) / "static"))
