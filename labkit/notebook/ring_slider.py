"""A slider over the steps of a ring all-reduce that really ran."""

from functools import cache
from typing import Any

import ipywidgets as widgets

from labkit import viz
from labkit.notebook.slider_names import with_slider_names
from labkit.viz.ring_walk import RingWalk, ring_walk

_MILLISECONDS_PER_STEP = 1500


class RingSlider:
    """A step of a ring at a time, with a button that plays them. `step` is the one shown.

    Without a browser, and on a page that only shows what was stored, it is the picture of all steps
    (viz.ring_steps) instead.
    """

    def __init__(self, walk: RingWalk, title: str | None = None) -> None:
        """See `ring_slider`."""
        self._walk = walk
        self._title = title
        self._png = cache(lambda step: viz.ring_step(walk, step, title=title).png())
        last = len(walk.steps)
        self._slider = widgets.IntSlider(0, 0, last, description="step", layout={"width": "32em"})
        play = widgets.Play(value=0, min=0, max=last, interval=_MILLISECONDS_PER_STEP)
        # Linked in the browser, so that playing does not wait for the kernel.
        widgets.jslink((play, "value"), (self._slider, "value"))
        self._picture = widgets.Image(format="png", layout={"max_width": "900px"})
        self._slider.observe(self._refresh, names="value")
        player = widgets.HBox([play, self._slider])
        self._widget = with_slider_names(widgets.VBox([player, self._picture]))
        self._refresh()

    @property
    def step(self) -> int:
        """0 is the start, 2(n-1) the end."""
        return int(self._slider.value)

    def _refresh(self, _: Any = None) -> None:
        self._picture.value = self._png(self.step)

    def __repr__(self) -> str:
        return repr(self._all_steps())

    def _all_steps(self) -> viz.Picture:
        return viz.ring_steps(self._walk, title=self._title)

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        static, metadata = self._all_steps()._repr_mimebundle_()
        bundle: dict[str, Any] = self._widget._repr_mimebundle_()
        return {**bundle, **static}, metadata


def ring_slider(run: Any, *, title: str | None = None) -> RingSlider:
    """Which chunk sits where, step by step; the last line of a cell shows it.

    run: a Run of one ring all-reduce on 2 to 8 ranks; who holds what comes from its journals.
    Raises what `viz.ring_step` raises.
    """
    walk = run if isinstance(run, RingWalk) else ring_walk(run)
    return RingSlider(walk, title)
