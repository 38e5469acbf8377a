"""Side by side in one run: candidates alternate, and medians are compared.

Times on a shared machine wander by tens of percent within a minute. A ratio of medians of
alternating measurements does not: what slows one candidate slows its neighbour too.
"""

import argparse
import os
import platform
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

from labkit import Group, measure


def alternate(
    world: Group, candidates: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, float]:
    """Median seconds per call of each candidate: that of the slowest rank, each time."""
    rounds = alternate_in_rounds(world, candidates, repetitions)
    return {name: statistics.median(times) for name, times in rounds.items()}


def alternate_in_rounds(
    world: Group, candidates: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, list[float]]:
    """Return the same before the median: an entry for each round."""
    seconds = measure.alternate(world, candidates, repetitions)
    return {
        name: world.all_reduce(torch.tensor(times, dtype=torch.float64), "max").tolist()
        for name, times in seconds.items()
    }


def added(times: Sequence[float], base: Sequence[float]) -> str:
    """Return the excess of `times` over `base`, as a share: `+5.2% (+4.1 to +6.3)`.

    The median of the rounds' differences, and the interval that holds it with 95%: between two
    order statistics, whatever the distribution. Differences within a round know nothing of how the
    machine wanders from round to round.
    """
    middle = statistics.median(base)
    shares = sorted((one - other) / middle for one, other in zip(times, base, strict=True))
    number, half = len(shares), 0.98 * len(shares) ** 0.5
    low = shares[max(int(number / 2 - half), 0)]
    high = shares[min(int(number / 2 + half), number - 1)]
    return f"{statistics.median(shares):+.1%} ({100 * low:+.1f} to {100 * high:+.1f})"


def command_line(doc: str) -> argparse.ArgumentParser:
    """Return the parser of a benchmark with that docstring."""
    return argparse.ArgumentParser(description=doc.split("\n")[0])


def chosen_names(parser: argparse.ArgumentParser, known: Sequence[str]) -> list[str]:
    """Return the candidates that the command line names; none of them stands for all."""
    names = ", ".join(map(repr, known))
    parser.add_argument("candidate", nargs="*", help=f"some of {names}; else all")
    chosen = parser.parse_args().candidate
    if unknown := set(chosen) - set(known):
        parser.error(f"{', '.join(map(repr, unknown))}: choose among {names}")
    return chosen


def machine() -> str:
    """Describe the machine of a measurement, in one line."""
    return (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores "
        f"(load {os.getloadavg()[0]:.1f}), "
        f"Python {platform.python_version()}, torch {torch.__version__}"
    )
