"""Times over throttled links: predicted by calc, replayed on a virtual clock, measured here.

    python benchmarks/links.py

Replayed equals predicted where calc's formula is exact: tests/traffic/test_throttled_links.py
asserts it. Measured is never less, and more by what this machine adds. The second table has the
links that a sweep finds from its measurements, the third a training step on 1 and 2 ranks.
"""

from collections.abc import Callable, Iterator

import torch
from measure import command_line, machine

from labkit import Group, Link, Topology, calc, replay, run
from labkit.collectives import (
    hierarchical_all_reduce,
    pairwise_all_to_all,
    ring_all_reduce,
    two_tiers,
)
from labkit.comm import Timeline
from labkit.measure import collectives, scaling
from labkit.measure.scaling_law import ROW_S, SERIAL_S

FAST, SLOW = Link(20e6, 0.5e-3), Link(4e6, 1e-3)
TIERS = Topology(hosts=2, ranks_per_host=2, fast=FAST, slow=SLOW)
NUMEL = 200_000
ROUNDS = 3
STEP_BYTES = 4 * 5 * 64 * 65
"""Gradients of labkit.measure.scaling's step, which a ring of two sends once."""


def calls(world: Group) -> dict[str, Callable[[], object]]:
    """By name, on every rank."""
    x = torch.ones(NUMEL)
    fast, slow = two_tiers(world, ranks_per_host=2)
    return {
        "ring": lambda: ring_all_reduce(x, world),
        "hierarchical": lambda: hierarchical_all_reduce(x, fast, slow),
        "ring in a host": lambda: ring_all_reduce(x, fast),
        "all-to-all in a host": lambda: pairwise_all_to_all(x, fast),
    }


def predicted() -> dict[str, float]:
    """Seconds of the same calls by calc's formulas."""
    nbytes, alphas, betas = 4 * NUMEL, (FAST.alpha, SLOW.alpha), (FAST.beta, SLOW.beta)
    tiers = {
        name: calc.collective("all_reduce", name, 4, nbytes, ranks_per_host=2)
        for name in ("ring", "hierarchical")
    }
    host = {
        "ring in a host": calc.collective("all_reduce", "ring", 2, nbytes),
        "all-to-all in a host": calc.collective("all_to_all", "pairwise", 2, nbytes),
    }
    return {
        **{name: each.seconds(alphas, betas, shared=True) for name, each in tiers.items()},
        **{name: each.seconds(FAST.alpha, FAST.beta) for name, each in host.items()},
    }


def on_rank(world: Group) -> None:
    """Each call ROUNDS times, in a region of its name."""
    for name, call in calls(world).items():
        for _ in range(ROUNDS):
            world.barrier()
            with world.region(name):
                call()


def shortest(timelines: list[Timeline], name: str) -> float:
    """Seconds of the shortest round: from the first rank's beginning to the last one's end."""
    rounds = zip(*([r for r in each.regions if r.name == name] for each in timelines), strict=True)
    return min(max(r.end_s or 0.0 for r in of) - min(r.start_s for r in of) for of in rounds)


def table() -> Iterator[tuple[str, float, float, float]]:
    """(call, seconds predicted, replayed, measured)."""
    result = run(on_rank, TIERS.world_size, topology=TIERS, timeout=300)
    replayed = replay(result.timeline, TIERS)
    for name, seconds in predicted().items():
        yield name, seconds, shortest(replayed, name), shortest(result.timeline, name)


def main() -> None:
    """Print the three tables."""
    command_line(__doc__).parse_args()
    print(machine())
    print(f"\n{TIERS}\n\n{4 * NUMEL / 1e6:.1f} MB, best of {ROUNDS} rounds")
    print(f"  {'':<22}{'predicted':>12}{'replayed':>12}{'measured':>12}{'residual':>10}")
    for name, *seconds in table():
        print(f"  {name:<22}" + "".join(f"{1e3 * each:>9.2f} ms" for each in seconds), end="")
        print(f"{seconds[2] / seconds[0] - 1:>+10.1%}")
    link = Link(2e6, 20e-3)
    topology = Topology(hosts=1, ranks_per_host=2, fast=link)
    sizes = ["1 KiB", "128 KiB"]
    fit = collectives(sizes, 2, "ring", repetitions=5, topology=topology).fits["ring"]
    found = Link(fit.bytes_per_s, max(fit.alpha, 0.0))
    print(f"\nthe links that a sweep finds: {found}; they are {link}")
    link = Link(2e6, 1e-3)
    alone_s, wire_s = ROW_S * 8 + SERIAL_S, link.seconds(0) * 2 + STEP_BYTES * link.beta
    print(
        f"\na training step on 1 and 2 ranks over {link}; predicted: {1e3 * alone_s:.0f} ms on 1,"
    )
    print(f"{1e3 * (alone_s - ROW_S * 4 + wire_s):.0f} ms strong and ", end="")
    print(f"{1e3 * (alone_s + wire_s):.0f} ms weak on 2, of which communication {1e3 * wire_s:.0f}")
    print(scaling(ranks=(1, 2), batch=8, link=link).table())


if __name__ == "__main__":
    main()
