"""The take-home on a page: layout, schedule and placement in, the step's seconds out.

take_home()

    the job and its cluster; the bound, and five answers to beat
    Layout [dp=2 pp=4 tp=8 ...]   Schedule [interleaved]   Hosts [0 1 2 3 4 5 6 7]   (Score)
    the seconds of a step, and the slowest replica's pipeline in time
"""

from dataclasses import replace
from html import escape

import ipywidgets as widgets

from labkit.interview import take_home as game
from labkit.interview.take_home import BASELINES, Score, UnusableAnswer, best_s, bound_s
from labkit.notebook.controls import button, capture_warnings, note, page, row, rows_field, say
from labkit.notebook.schedule_svg import schedule_svg
from labkit.notebook.shown import FAINT, WithWidget, box, run_it, scrolled

_HEADING = ("answer", "a step", "times the bound", "pipeline idle", "fullest GPU")
_WIDE = {"width": "100%"}


class TakeHome(WithWidget):
    """The box that `take_home` shows. `score()` does what its button does."""

    def __init__(self) -> None:
        """See `take_home`."""
        to_beat = game.scored_baselines()
        fastest = min(to_beat, key=lambda name: to_beat[name].seconds)
        answer = BASELINES[fastest]
        self._layout = widgets.Text(
            value=answer["layout"], description="Layout", continuous_update=False, layout=_WIDE
        )
        self._schedule = rows_field(f"Schedule: {', '.join(game.SCHEDULES)}, or rows of your own")
        self._schedule.value, self._schedule.rows = answer["schedule"], 4
        self._hosts = widgets.Text(
            value=" ".join(map(str, range(game.NUM_HOSTS))),
            description="Real host of each node of the layout, in order",
            continuous_update=False,
            layout=_WIDE,
        )
        self._table, self._result = widgets.HTML(), note()
        fields = [self._layout, self._schedule, self._hosts]
        scored = [row([button("Score", self.score)]), self._result]
        self._widget = page([widgets.HTML(_task_html()), self._table, *fields, *scored])
        self._show(None)

    def score(self) -> Score | None:
        """Score and store the answer in the fields; None, and the reason, for one that is none."""
        answer = {
            "layout": self._layout.value,
            "schedule": self._schedule.value.strip(),
            "hosts": self._hosts.value.replace(",", " ").split(),
        }
        try:
            found, captured = capture_warnings(lambda: game.score(answer))
        except UnusableAnswer as error:
            say(self._result, f'<p style="white-space: pre-line">✗ {escape(str(error))}</p>')
            return None
        beaten = ", ".join(game.beaten(found)) or "none"
        said = f"<p><b>{escape(str(found))}.</b> It beats {beaten} of the five."
        say(self._result, f"{said}</p>{_picture_html(found)}{captured.html}")
        self._show(found)
        return found

    def _show(self, found: Score | None) -> None:
        best, _ = capture_warnings(best_s)
        self._table.value = _table_html(found, best)

    def __repr__(self) -> str:
        lines = [f"{name}: {each}" for name, each in game.scored_baselines().items()]
        return "\n".join([game.task(), f"The bound: {bound_s():.3f} s a step.", *lines])

    def _static_html(self) -> str:
        static = _task_html() + _table_html(None, None)
        return box(static + run_it("beat them."))


def take_home() -> TakeHome:
    """Show the take-home: one job on one simulated cluster, as the last line of a cell.

    Layout, schedule and placement are fields, at first those of the fastest of the five answers to
    beat. A score is stored as by `labkit take-home`.
    """
    return TakeHome()


def _task_html() -> str:
    return (
        f'<div class="prompt">Take-home: one job, one cluster</div><p>{escape(game.task())} Choose '
        "how to cut the model, in which order each rank works, and which real host is which node. "
        f"No step is faster than {bound_s():.3f} s.</p>"
    )


def _table_html(found: Score | None, best: float | None) -> str:
    """Return the answers to beat, with the learner's own below them."""
    rows = [
        (name, BASELINES[name]["layout"], each) for name, each in game.scored_baselines().items()
    ]
    rows += [("this answer", "", found)] if found else []
    cell = "padding: 3px 12px 3px 4px; text-align: left;"
    lines = ["".join(f'<th style="{cell} color: {FAINT}">{each}</th>' for each in _HEADING)]
    for name, layout, each in rows:
        cells = [
            f"{each.seconds:.3f} s",
            f"{each.seconds / bound_s():.2f}",
            f"{each.bubble:.0%}",
            f"{each.memory_bytes / 1e9:.1f} GB",
        ]
        about = f"<b>{escape(name)}</b><br><code>{escape(layout)}</code>"
        numbers = "".join(f'<td style="{cell} white-space: nowrap">{text}</td>' for text in cells)
        lines.append(f'<td style="{cell}">{about}</td>{numbers}')
    table = "".join(f"<tr>{line}</tr>" for line in lines)
    mine = f"<p>Your best so far: {best:.3f} s.</p>" if best is not None else ""
    look = "border-collapse: collapse; min-width: 38em"
    return scrolled(f'<table style="{look}">{table}</table>', "answers") + mine


def _picture_html(found: Score) -> str:
    """Draw the slowest replica's pipeline; nothing for more than can be drawn."""
    seconds = replace(found.timing, send=None)  # as a measured one: its axis is in seconds
    try:
        return scrolled(schedule_svg(seconds), "the slowest replica's pipeline in time")
    except ValueError:
        return ""
