"""Controls of the pages on which somebody practises: buttons, fields, notes, and how they look.

Each has words on it or beside it, takes part in the order of Tab, and may become as narrow as a
window at 200% zoom makes it. Colours are the theme's, so that a dark page stays readable.
"""

import asyncio
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets

from labkit.notebook.shown import BORDER, FAINT

_CLASS = "labkit-practice"
# Both are on their way at once: this is for the kernel to take the second one from its queue.
_TEXT_FOLLOWS_S = 0.2
# ipywidgets cuts long words off; here they go on in the next line. Its own mark of the control that
# has the keyboard is one pale pixel.
_STYLE = f"""<style>
.{_CLASS} {{ max-width: 54em; overflow: visible; border-left: 4px solid #0072b2;
  padding: 2px 12px; margin: 4px 0; }}
.{_CLASS} .widget-box {{ overflow: visible; }}
.{_CLASS} .widget-html, .{_CLASS} .widget-html-content {{ height: auto; min-width: 0;
  max-width: 100%; margin: 0; white-space: normal; overflow-wrap: anywhere; line-height: 1.5;
  font-size: var(--jp-content-font-size1, 14px); color: var(--jp-content-font-color1, inherit); }}
.{_CLASS} .widget-html-content {{ width: 100%; }}
.{_CLASS} .widget-button {{ height: auto; min-height: 2.3em; width: auto; line-height: 1.4;
  padding: 0.3em 1em; white-space: normal; font-size: var(--jp-content-font-size1, 14px);
  margin: 2px 8px 2px 0; }}
.{_CLASS} .widget-checkbox {{ height: auto; width: 100%; margin: 0; }}
.{_CLASS} .widget-checkbox label {{ display: flex; align-items: flex-start; height: auto;
  width: 100%; white-space: normal; overflow: visible; padding: 3px 0; line-height: 1.5;
  font-size: var(--jp-content-font-size1, 14px); }}
.{_CLASS} .widget-checkbox input {{ flex: none; align-self: flex-start;
  margin: 1px 0.7em 0 2px; }}
.{_CLASS} .widget-textarea, .{_CLASS} .widget-text {{ height: auto; max-width: 100%;
  flex-flow: column; align-items: stretch; margin: 0 0 6px; }}
.{_CLASS} .widget-textarea > label, .{_CLASS} .widget-text > label {{ width: auto; height: auto;
  text-align: left; line-height: 1.8; overflow: visible; margin: 0;
  font-size: var(--jp-content-font-size1, 14px); }}
.{_CLASS} .widget-textarea textarea, .{_CLASS} .widget-text input {{ box-sizing: border-box;
  flex: none; width: 100%; margin: 0; padding: 0.35em 0.5em; height: auto; line-height: 1.5;
  font-size: var(--jp-content-font-size1, 14px);
  font-family: var(--jp-content-font-family, inherit); }}
.{_CLASS} table {{ display: block; max-width: 100%; overflow-x: auto; border-collapse: collapse;
  margin: 0.6em 0; }}
.{_CLASS} td, .{_CLASS} th {{ padding: 3px 14px 3px 4px; border-bottom: 1px solid {BORDER};
  text-align: left; vertical-align: top; }}
.{_CLASS} p, .{_CLASS} ul, .{_CLASS} ol {{ margin: 0.4em 0; }}
.{_CLASS} h4 {{ margin: 0.8em 0 0.2em; font-size: inherit; font-weight: 600; }}
.{_CLASS} summary {{ cursor: pointer; padding: 2px 0; font-weight: 600; }}
.{_CLASS} a {{ color: var(--jp-content-link-color, #1976d2); text-decoration: underline; }}
.{_CLASS} .faint {{ color: {FAINT}; }}
.{_CLASS} .prompt {{ font-size: 1.15em; font-weight: 600; margin: 0.3em 0 0.5em; }}
.{_CLASS} :focus-visible {{ outline: 2px solid var(--jp-brand-color1, #1976d2) !important;
  outline-offset: 1px; }}
</style>"""


def page(parts: Sequence[Any]) -> Any:
    """The parts below one another, beside a coloured bar. Its style reaches what is added later."""
    found = widgets.VBox([widgets.HTML(_STYLE), *parts])
    found.add_class(_CLASS)
    return found


def button(label: str, call: Callable[[], object], *, tooltip: str | None = None) -> Any:
    """A button with a label, which calls. Space and Enter press it, as everywhere."""
    found = widgets.Button(description=label, tooltip=tooltip)
    found.on_click(lambda _: call())
    return found


def row(parts: Sequence[Any]) -> Any:
    """Beside one another, and in several lines where there is no room."""
    return widgets.HBox(parts, layout={"flex_flow": "row wrap", "align_items": "center"})


def note() -> Any:
    """A place for words that appear later; a screen reader says them when they do."""
    return widgets.HTML(layout={"display": "none"})


def say(place: Any, html: str) -> None:
    """Put words into a `note`; "" hides it."""
    place.value = f'<div role="status">{html}</div>' if html else ""
    show(place, bool(html))


def show(widget: Any, is_shown: bool) -> None:
    """Take up no room, and no Tab, while there is nothing to see."""
    widget.layout.display = None if is_shown else "none"


def on_enter(entry: Any, call: Callable[[str], object]) -> Callable[[], None]:
    """Call with the text of a field when Enter is pressed in it.

    A page sends that Enter was pressed, and after it the text that Enter completed: it is waited
    for. Were every keystroke sent, those of a quick typist would still queue up behind Enter, and
    "25" be taken for "2".

    Returns what a button beside the field calls: the same, at once. An Enter whose text is still
    waited for is served by it, and does not call a second time.
    """
    entry.continuous_update = False
    waiting: list[asyncio.TimerHandle] = []

    def submit() -> None:
        while waiting:
            waiting.pop().cancel()
        call(entry.value)

    def on_key(_: Any) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no page, as in a test
            submit()
        else:
            waiting.append(loop.call_later(_TEXT_FOLLOWS_S, submit))

    with warnings.catch_warnings():
        # Its successor, observing the value, would also fire when the field loses the focus.
        warnings.simplefilter("ignore", DeprecationWarning)
        entry.on_submit(on_key)
    entry.observe(lambda _: submit() if waiting else None, names="value")
    return submit
