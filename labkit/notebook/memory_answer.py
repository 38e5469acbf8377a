"""What the memory calculator says: no widgets here, formulas from labkit.calc only.

A table of parts by GPU, whether the fullest one fits, and if not, what to change.
"""

from __future__ import annotations

from labkit import calc
from labkit.calc import Result, TrainingSetup
from labkit.calc.memory.fit import Change, smallest_change

DEVICES = {"24 GB": 24e9, "40 GB": 40e9, "80 GB": 80e9, "141 GB": 141e9}
"""As data sheets name them, a GB being 1e9 bytes. Such a device has some 5% more, and needs it, for
CUDA itself and for what its allocator has in unusable pieces."""

_MOST_STAGES = 4


def shown(setup: TrainingSetup) -> dict[str, Result]:
    """One GPU of each stage by name; of a long pipeline the first two and the last two.

    The fullest is among them: the first has most in flight, the last has the logits.
    """
    stages = calc.footprints(setup)
    if len(stages) == 1:
        return {"each GPU": stages[0]}
    numbers = list(range(len(stages)))
    if len(stages) > _MOST_STAGES:
        numbers = [*numbers[:2], *numbers[-2:]]
    return {f"stage {number}": stages[number] for number in numbers}


def rows(setup: TrainingSetup) -> list[list[str]]:
    """A heading and a row for each part: its name, its bytes on each GPU shown, and how."""
    gpus = shown(setup)
    parts = list(dict.fromkeys(part for each in gpus.values() for part in each.parts))
    table = [["", *gpus, "how"]]
    for part in parts:
        cells = [str(each[part]) if part in each.parts else "–" for each in gpus.values()]
        how = next(each[part] for each in gpus.values() if part in each.parts)
        table.append([part, *cells, how.substitution])
    return [*table, ["together", *map(str, gpus.values()), f"on {_gpus(setup.num_gpus)}"]]


def changes(setup: TrainingSetup, capacity: float) -> list[Change]:
    """The smallest single change with which it fits, or else several; [] if it fits, or never.

    Several are taken, too, where they need no more GPUs and the single one does.
    """
    if calc.footprint(setup) <= capacity:
        return []
    single = smallest_change(setup, capacity)
    if single is not None and single.setup.num_gpus == setup.num_gpus:
        return [single]
    several = calc.changes_that_fit(setup, capacity)
    is_on_these = bool(several) and several[-1].setup.num_gpus == setup.num_gpus
    return [single] if single is not None and not is_on_these else several


def advice(setup: TrainingSetup, capacity: float) -> str:
    """Whether the fullest GPU fits and what is left; or what is missing, and what to change."""
    fullest = float(calc.footprint(setup))
    device = calc.bytes_text(capacity)
    if fullest <= capacity:
        left = capacity - fullest
        return f"It fits: of {device}, {calc.bytes_text(left)} are left ({left / capacity:.0%})."
    over = f"It does not fit: {calc.bytes_text(fullest - capacity)} more than {device}."
    to_make = changes(setup, capacity)
    if not to_make:
        return f"{over} No change of these knobs helps: take a smaller model, or a larger device."
    after = f"then {to_make[-1].footprint} on {_gpus(to_make[-1].setup.num_gpus)}"
    if len(to_make) == 1:
        return f"{over} Smallest change: {to_make[0]}; {after}. It costs {to_make[0].costs}."
    listed = "; ".join(map(str, to_make))
    where = ""
    if to_make[-1].setup.num_gpus == setup.num_gpus:
        where = " on this GPU" if setup.num_gpus == 1 else " on these GPUs"
    return f"{over} No single change is enough{where}. Together: {listed}; {after}."


def text(setup: TrainingSetup, capacity: float) -> str:
    """The table, aligned, and the advice below it."""
    table = rows(setup)
    widths = [max(map(len, column)) for column in zip(*table)]
    lines = [
        row[0].ljust(widths[0])
        + "".join(cell.rjust(width + 3) for cell, width in zip(row[1:-1], widths[1:-1]))
        + f"   {row[-1]}"
        for row in table
    ]
    return "\n".join([*(line.rstrip() for line in lines), advice(setup, capacity)])


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count:,} GPUs"
