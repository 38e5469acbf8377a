"""How far the reader is, on one page: days in a row, what is due, mastery, exercises, drills.

dashboard()                     of the progress store, with a button that reads it again
dashboard(standing_of(...))     of any events, such as a made-up history
"""

from typing import Any

import ipywidgets as widgets

from labkit import arguments
from labkit.interview.standing import Standing, standing, standing_of
from labkit.notebook.controls import button, page, row
from labkit.notebook.dashboard_page import page_html, page_text
from labkit.notebook.heard import Heard, listen
from labkit.notebook.shown import FAINT, box
from labkit.progress import clock


class Dashboard:
    """The box that `dashboard` shows. `refresh()` does what its button does; `found` is shown."""

    def __init__(self, given: Standing | None) -> None:
        """given: shown as it is; None: the store's, now."""
        self._given = given
        self.found = given or standing_of([], clock.now_s())
        self._page, self._status = widgets.HTML(), widgets.HTML()
        parts = [self._page]
        if given is None:
            refresh = button("Refresh", self.refresh, tooltip="Read the progress store again")
            parts.append(row([refresh, self._status]))
        self._widget = page(parts)
        self._show(Heard()) if given else self.refresh()

    def refresh(self) -> Standing:
        """Read the store again. What is wrong with it stands above what could be read."""
        self.found, heard = listen(standing)
        self._show(heard)
        time = f"{clock.moment_of(self.found.now_s):%H:%M:%S}"
        self._status.value = f'<span role="status" class="faint">As of {time}</span>'
        return self.found

    def _show(self, heard: Heard) -> None:
        # Of a store that cannot be read, nobody knows that nothing is in it.
        is_unknown = heard.is_unread and self.found.is_new
        self._page.value = heard.html + ("" if is_unknown else page_html(self.found))

    def __repr__(self) -> str:
        if self._given is None:
            return "Your progress: run this cell to see it."
        return page_text(self._given)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        # The static forms show what was given, and nobody's own store.
        static = (
            f'<b>Your progress</b><br><span style="color: {FAINT}">Run this cell to see it.</span>'
        )
        if self._given is not None:
            static = page_html(self._given)
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, "text/plain": repr(self), "text/html": box(static)}


def dashboard(of: Standing | None = None) -> Dashboard:
    """How far you are; the last line of a cell shows it. Reads the progress store, changes nothing.

    of: another Standing, such as `standing_of` makes of events.
    """
    if of is not None:
        arguments.instance(
            "of", of, Standing, "leave it out, or give what standing_of(events) made"
        )
    return Dashboard(of)
