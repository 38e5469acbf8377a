"""One step of a ring in words and numbers: what stands beside its picture."""

from matplotlib.axes import Axes

from labkit.calc.units import exact_bytes_text, number_text
from labkit.viz import style
from labkit.viz.ring_walk import RingWalk


def draw_panel(axes: Axes, walk: RingWalk, step: int, x: float, y: float) -> None:
    """What moved in this step, and what has been sent so far; from (x, y) in inches downwards."""
    if not step:
        lines = ["Each rank holds its own contribution", "to every chunk, and nothing else."]
        for number, line in enumerate(lines):
            axes.text(x, y + 0.22 * number, line, **style.SMALL)
        return
    axes.text(x, y, f"step {step}: {walk.phase(step)}", **style.SMALL | {"fontweight": "bold"})
    y += 0.3
    for hop in walk.steps[step - 1]:
        size = f"{number_text(hop.numel)} number{'' if hop.numel == 1 else 's'}"
        text = f"rank {hop.source} sends chunk {hop.chunk}, {size}"
        axes.text(x, y, text, **style.SMALL)
        y += 0.22
    y += 0.1
    for line in (_sent_so_far(walk, step), _complete(walk, step), _when(walk, step)):
        axes.text(x, y, line, **style.FAINT)
        y += 0.22


def _sent_so_far(walk: RingWalk, step: int) -> str:
    sent = dict.fromkeys(walk.ranks, 0)
    for hops in walk.steps[:step]:
        for hop in hops:
            sent[hop.source] += hop.nbytes
    low, high = (exact_bytes_text(of(sent.values())) for of in (min, max))
    return f"sent so far by each rank: {low if low == high else f'{low} to {high}'}"


def _complete(walk: RingWalk, step: int) -> str:
    cells = [sources for holding in walk.states[step] for sources in holding]
    complete = sum(len(sources) == len(walk.ranks) for sources in cells)
    return f"complete: {complete} of {len(cells)} cells"


def _when(walk: RingWalk, step: int) -> str:
    """Ranks don't wait for each other, so steps overlap."""
    hops = walk.steps[step - 1]
    begin, end = min(hop.sent_s for hop in hops), max(hop.arrived_s for hop in hops)
    unit = style.time_unit(end)
    return (
        f"on its way from {begin * unit.per_second:.3g} to {end * unit.per_second:.3g} {unit.name}"
    )
