"""Controls of the practice pages: buttons, fields, notes, a ticker, the progress store's warnings.

Each control has words on it or beside it, takes part in the order of Tab, and may become as narrow
as a window at 200% zoom makes it. Colours are the theme's, so that a dark page stays readable.

Ticker runs every second in the kernel's own event loop, without a thread. A task of the loop ends
with the kernel, never runs beside a cell's code, and is idle while one runs; so what a tick shows
must be computed from a clock, and not from the number of ticks.

`capture_warnings` catches a ProgressWarning, which would go unseen from a widget's button, and
shows it beside the answer:

    rating, captured = capture_warnings(lambda: grade(card, said))
    captured.is_unwritten          nothing was stored
    captured.html                  what happened, in words

`with_slider_names` makes labels of sliders part of the page for a screen reader. A slider of
ipywidgets has its label beside it, but nothing ties the two together: a screen reader says "slider,
3". A few lines in the page make label and value the name of the handle.
"""

import asyncio
import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar

import ipywidgets as widgets

from labkit.notebook.shown import BORDER, FAINT
from labkit.progress import ProgressWarning, practice

_CLASS = "labkit-practice"
# A browser's Python has files of its own, which nobody sees.
KEEPS_FILES = sys.platform != "emscripten"
_HAS_THREADS = sys.platform != "emscripten"
# Both are on their way at once: this is for the kernel to take the other one from its queue.
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
.{_CLASS} .labkit-rows textarea {{ font-family: monospace; white-space: pre; overflow-x: auto; }}
.{_CLASS} table {{ display: block; max-width: 100%; overflow-x: auto; border-collapse: collapse;
  margin: 0.6em 0; }}
.{_CLASS} td, .{_CLASS} th {{ padding: 3px 14px 3px 4px; border-bottom: 1px solid {BORDER};
  text-align: left; vertical-align: top; }}
.{_CLASS} th {{ overflow-wrap: break-word; }}
.{_CLASS} p, .{_CLASS} ul, .{_CLASS} ol {{ margin: 0.4em 0; }}
.{_CLASS} h4 {{ margin: 0.8em 0 0.2em; font-size: inherit; font-weight: 600; }}
.{_CLASS} summary {{ cursor: pointer; padding: 2px 0; font-weight: 600; }}
.{_CLASS} a {{ color: var(--jp-content-link-color, #1976d2); text-decoration: underline; }}
.{_CLASS} .faint {{ color: {FAINT}; }}
.{_CLASS} .prompt {{ font-size: 1.15em; font-weight: 600; margin: 0.3em 0 0.5em; }}
.{_CLASS} :focus-visible {{ outline: 2px solid var(--jp-brand-color1, #1976d2) !important;
  outline-offset: 1px; }}
</style>"""


Setup = TypeVar("Setup")


def page(parts: Sequence[Any]) -> Any:
    """Put the parts below one another, beside a coloured bar. Its style reaches later parts too."""
    found = widgets.VBox([widgets.HTML(_STYLE), *parts])
    found.add_class(_CLASS)
    return found


def button(label: str, call: Callable[[], object], *, tooltip: str | None = None) -> Any:
    """Make a button with a label, which calls. Space and Enter press it."""
    found = widgets.Button(description=label, tooltip=tooltip)
    found.on_click(lambda _: call())
    return found


def row(parts: Sequence[Any]) -> Any:
    """Put parts beside one another, and in several lines where there is no room."""
    return widgets.HBox(parts, layout={"flex_flow": "row wrap", "align_items": "center"})


def choice(
    label: str,
    stops: Sequence[Any],
    start: Any,
    text: Callable[[Any], str],
    *,
    is_menu: bool = False,
    width: str = "27em",
    label_width: str = "11em",
) -> Any:
    """Make a slider over `stops`, or a menu of them, at `start`, which becomes a stop too.

    text: writes a stop. width: of all of it, the label included.
    """
    if start not in stops:
        stops = (*stops, start) if is_menu else sorted((*stops, start))
    kind = widgets.Dropdown if is_menu else widgets.SelectionSlider
    return kind(
        options=[(text(stop), stop) for stop in stops],
        value=start,
        description=label,
        style={"description_width": label_width},
        layout={"width": width},
    )


def from_knobs(kind: Callable[..., Setup], first: object, others: Mapping[str, object]) -> Setup:
    """Return kind(first, **others), the positions of knobs. TypeError for one that is no knob."""
    known = inspect.signature(kind).parameters
    if unknown := ", ".join(name for name in others if name not in known):
        raise TypeError(f"no knob is called {unknown}; there are: {', '.join(known)}")
    return kind(first, **others)


def note() -> Any:
    """Make a place for words that appear later; a screen reader says them when they do."""
    return widgets.HTML(layout={"display": "none"})


def say(place: Any, html: str) -> None:
    """Put words into a `note`; "" hides it."""
    place.value = f'<div role="status">{html}</div>' if html else ""
    show(place, bool(html))


def rows_field(label: str) -> Any:
    """Make a field for the rows of a schedule: their columns align, and it scrolls sideways."""
    layout = {"width": "100%"}
    found = widgets.Textarea(description=label, rows=5, continuous_update=False, layout=layout)
    return found.add_class("labkit-rows")


def show(widget: Any, is_shown: bool) -> None:
    """Show a widget, or hide it so that it takes up no room and no Tab."""
    widget.layout.display = None if is_shown else "none"


def on_enter(entry: Any, call: Callable[[str], object]) -> Callable[[], None]:
    """Call with the text of a field when Enter is pressed in it.

    A page sends that Enter was pressed, and after it the text that Enter completed: it is waited
    for. Were every keystroke sent, those of a quick typist would still queue up behind Enter, and
    "25" be taken for "2".

    Returns what a button beside the field calls: the same. It waits, too, as in `after_fields`. An
    Enter whose text is still waited for is served by it, and does not call a second time.
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
    return lambda: submit() if waiting or not _HAS_THREADS else on_key(None)


def after_fields(call: Callable[[], object]) -> Callable[[], None]:
    """Return what a button below several fields calls: `call`, once their texts have arrived.

    ipykernel 7.4 may take the messages of a field and of a button in two threads, and then the
    button is sometimes first.
    """

    def soon() -> None:
        if not _HAS_THREADS:
            call()
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no page, as in a test
            call()
        else:
            loop.call_later(_TEXT_FOLLOWS_S, call)

    return soon


_SECOND_S = 1.0


class Ticker:
    """Calls `tick` every second for as long as it returns True."""

    def __init__(self, tick: Callable[[], bool]) -> None:
        self._tick = tick
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Return whether there is a next tick."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Tick from now on. Nothing happens without a loop, as in a script, or a second time."""
        if self.is_running:
            return
        try:
            self._task = asyncio.get_running_loop().create_task(self._run())
        except RuntimeError:
            self._task = None

    def stop(self) -> None:
        """No tick after this."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        try:
            while self._tick():
                await asyncio.sleep(_SECOND_S)
        except KeyboardInterrupt:
            # Out of a task it would end the loop, and with it the kernel.
            return


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class CapturedWarnings:
    """Texts of the store's warnings; none if all went well."""

    messages: tuple[str, ...] = ()

    @property
    def is_unwritten(self) -> bool:
        """Return whether something was to be stored, and could not be."""
        return any(practice.NOT_WRITTEN in each for each in self.messages)

    @property
    def is_unread(self) -> bool:
        """Return whether something was to be read, and could not be."""
        return any(practice.NOT_READ in each for each in self.messages)

    @property
    def html(self) -> str:
        """A paragraph for each message; "" for none."""
        return "".join(f"<p><b>Progress.</b> {escape(each)}</p>" for each in self.messages)


def capture_warnings(call: Callable[[], Result]) -> tuple[Result, CapturedWarnings]:
    """Return what `call` returns, and the store's warnings meanwhile. Others pass through.

    Where `call` raises, all of them do: there is no answer then for them to stand beside.
    """
    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ProgressWarning)
            result = call()
    except BaseException:
        _pass_on(caught)
        raise
    said = [each for each in caught if issubclass(each.category, ProgressWarning)]
    _pass_on([each for each in caught if each not in said])
    return result, CapturedWarnings(tuple(dict.fromkeys(str(each.message) for each in said)))


def _pass_on(caught: list[warnings.WarningMessage]) -> None:
    for each in caught:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


# Once per page, for all sliders that it has and will have.
_SCRIPT = """
if (!window.labkitNamesSliders) {
  let count = 0
  const nameAll = () => {
    const unnamed = '.widget-slider [role=slider]:not([aria-labelledby])'
    for (const handle of document.querySelectorAll(unnamed)) {
      const row = handle.closest('.widget-slider')
      const parts = row.querySelectorAll('.widget-label, .widget-readout')
      parts.forEach(part => { part.id ||= `labkit-slider-${count++}` })
      for (const part of parts) {  // else "interleaved" loses its last letter
        part.style.maxWidth = 'none'
        part.style.flexShrink = 0
      }
      handle.setAttribute('aria-labelledby', [...parts].map(part => part.id).join(' '))
    }
  }
  window.labkitNamesSliders = new MutationObserver(nameAll)
  window.labkitNamesSliders.observe(document.body, {childList: true, subtree: true})
  nameAll()
}
"""


def with_slider_names(box: Any) -> Any:
    """Return the same box, whose sliders have names. Call it once, with all of a calculator."""
    for slider in _sliders_in(box):
        slider.tooltip = slider.description  # without one, pointing at the label shows "null"
    script = {
        "output_type": "display_data",
        "data": {"application/javascript": _SCRIPT},
        "metadata": {},
    }
    box.children += (widgets.Output(outputs=(script,), layout={"display": "none"}),)
    return box


def _sliders_in(widget: Any) -> list[Any]:
    if isinstance(widget, widgets.SelectionSlider):
        return [widget]
    return [found for child in getattr(widget, "children", ()) for found in _sliders_in(child)]
