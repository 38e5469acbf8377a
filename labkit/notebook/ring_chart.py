"""The calculator's chart: time of a ring all-reduce over the number of ranks, in its two parts."""

import io

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from labkit.calc.units import seconds_text
from labkit.notebook.ring_cost import RingCost, over_ranks
from labkit.viz import style

_WORLD_SIZES = (2, 3, 4, 6, 8, 12, 16, 32, 64, 128, 256, 512, 1024)
_LATENCY, _BYTES = "#e69f00", "#0072b2"


class RingChart:
    """One figure, made once; `png` moves its lines, which costs some 40 ms."""

    def __init__(self) -> None:
        """Axes, lines and labels."""
        self._figure = Figure(figsize=(4.4, 2.6), dpi=150)
        self._canvas = FigureCanvasAgg(self._figure)
        self._axes = axes = self._figure.add_axes((0.15, 0.18, 0.82, 0.7))
        (self._latency,) = axes.plot([1], [1], color=_LATENCY, linestyle="--", label="latency")
        (self._bytes,) = axes.plot([1], [1], color=_BYTES, linestyle=":", label="bytes")
        (self._total,) = axes.plot([1], [1], color=style.INK, linewidth=1.8, label="time")
        (self._here,) = axes.plot([1], [1], "o", color=style.ALARM, zorder=5)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlim(1.8, 1150)
        ticks = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter(lambda seconds, _: seconds_text(seconds))
        axes.tick_params(labelsize=7, length=2, color=style.GRID)
        axes.set_xlabel("ranks", fontsize=8)
        axes.grid(color=style.GRID, linewidth=0.5)
        for spine in axes.spines.values():
            spine.set_color(style.GRID)
        self._figure.legend(
            loc="upper left", bbox_to_anchor=(0.14, 1.0), ncols=3, frameon=False, fontsize=8
        )

    def png(self, cost: RingCost) -> bytes:
        """The chart for `cost`, with a dot at its number of ranks."""
        costs = over_ranks(cost, _WORLD_SIZES)
        self._latency.set_data(_WORLD_SIZES, [one.latency_seconds for one in costs])
        self._bytes.set_data(_WORLD_SIZES, [one.bandwidth_seconds for one in costs])
        totals = [one.seconds for one in costs]
        self._total.set_data(_WORLD_SIZES, totals)
        # A single rank has nothing to send, and no place on a log scale.
        self._here.set_data(
            ([cost.world_size], [cost.seconds]) if cost.world_size > 1 else ([], [])
        )
        self._axes.set_ylim(min(totals) / 50, max(totals) * 2)
        target = io.BytesIO()
        self._canvas.print_png(target)
        return target.getvalue()
