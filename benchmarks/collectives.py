"""Every all-reduce of labkit against gloo's own, and what the alpha-beta model predicts for each.

A table for each number of ranks: times as multiples of gloo's, in brackets the time by the model
with the alpha and beta fitted to that algorithm, which stand below. All work in place.

Then the same on throttled links, where the model's assumptions hold: nothing competes for a
core, and a message takes alpha + m beta. Run it with `python benchmarks/collectives.py`; it takes
about a minute.
"""

from itertools import combinations

from measure import command_line, machine

from labkit import Link, Topology, measure
from labkit.calc.units import KiB, MiB, seconds_text, size_text
from labkit.measure.algorithms import NAMES
from labkit.measure.measured import aligned

SIZES = [KiB, 16 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB]
REPETITIONS = 25
THROTTLED_SIZES = [KiB, 4 * KiB, 16 * KiB, 64 * KiB, 256 * KiB, MiB]
THROTTLED = Topology(hosts=1, ranks_per_host=4, fast=Link(20e6, 2e-3))
CHOICES = ("ring", "tree", "double_tree", "halving_doubling")


def table(measured: measure.Measured) -> str:
    """Return a line per size: gloo's time, the others' as multiples of it, and what the model
    says."""
    names = ["gloo", *(one.name for one in measured.algorithms if one.name != "gloo")]
    rows = [["", *names]]
    for nbytes in measured.sizes:
        gloo = measured.seconds["gloo"][nbytes]
        cells = []
        for name in names:
            seconds = measured.seconds[name][nbytes]
            found = seconds_text(seconds) if name == "gloo" else f"{seconds / gloo:.2f}"
            cells.append(f"{found} ({seconds_text(measured.predicted[name][nbytes])})")
        rows.append([size_text(nbytes), *cells])
    fits = [measured.fits[name] for name in names]
    rows.append(["alpha", *(seconds_text(fit.alpha) for fit in fits)])
    rows.append(["1 / beta", *(measure.link_speed_text(fit.beta) for fit in fits)])
    rows.append(["R2", *(f"{fit.r2:.2f}" for fit in fits)])
    return aligned(rows, left=1)


def main() -> None:
    """Print the tables, and where algorithms made of messages change places."""
    command_line(__doc__).parse_args()
    print(f"all_reduce of float32 in place, medians of {REPETITIONS}. {machine()}")
    for world_size in (2, 4):
        measured = measure.collectives(SIZES, world_size, NAMES, repetitions=REPETITIONS)
        print(f"\n{world_size} ranks: multiples of gloo's time (and time by the fitted model)")
        print(table(measured))
        for pair in combinations(CHOICES, 2):
            if (found := measured.crossover(*pair)) is not None:
                print(found)
    measured = measure.collectives(THROTTLED_SIZES, 4, CHOICES, repetitions=11, topology=THROTTLED)
    print(f"\n{measured.table()}")
    print(f"\none link for all of them: {measured.fit_together()}")


if __name__ == "__main__":
    main()
