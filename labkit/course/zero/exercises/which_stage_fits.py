"""Grade which_stage_fits: drawn setups, many of which fit or do not fit by a single byte."""

from collections.abc import Iterator
from typing import Any

from labkit.grade import grader as g

RECIPES = ((2, 2, 12), (2, 4, 12), (4, 4, 8), (2, 2, 4), (2, 2, 2), (4, 4, 4), (1, 4, 8))


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Yield setups on real GPUs, and on GPUs with about the memory that some level needs."""
    uniform = draw.rng.uniform
    for _ in range(10):
        for remainder, spare in (
            (None, None),
            (0, lambda its: 0),
            (2, lambda its: 0),
            (1, lambda its: -1),
            # GB and GiB differ by 7%.
            (None, lambda its: its["reserve_gb"] * 1e9 * uniform(0.01, 0.05)),
            (None, lambda its: its["memory_gib"] * 2**30 * uniform(0.03, 0.05)),
            (None, lambda its: -its["activation_bytes"] * uniform(0.8, 1)),
        ):
            its = setup(draw, spare, remainder)
            yield g.Case(", ".join(f"{key}={its[key]:,}" for key in its), its)


def setup(draw: g.Draw, spare: Any, remainder: int | None) -> dict[str, Any]:
    """Return a setup in which some level leaves spare(setup) bytes; None: a GPU that exists.

    remainder: parameters beyond a multiple of dp.
    """
    rng = draw.rng
    sizes, memory_gib = rng.choice(RECIPES), rng.choice((24, 40, 80, 141))
    its = {
        "num_params": int(memory_gib * 2**30 * 10 ** rng.uniform(-0.6, 1.6) / sum(sizes)),
        **dict(zip(("parameter_bytes", "gradient_bytes", "optimizer_bytes"), sizes)),
        "dp": rng.choice((4, 8, 16, 64, 512)),
        "activation_bytes": int(memory_gib * 2**30 * rng.uniform(0.03, 0.6)),
        # In some setups the reserve is the largest term.
        "reserve_gb": rng.randrange(1, memory_gib // 4) / 2 * rng.choice((1, 6)),
        "memory_gib": memory_gib,
    }
    if remainder is not None:
        its["num_params"] += remainder - its["num_params"] % its["dp"]
    if spare is not None:
        needed = int(sum(terms(its, rng.randrange(4)).values()))
        its["memory_gib"] = (needed + int(spare(its))) / 2**30  # exact: a power of two
    return its


def terms(its: dict[str, Any], level: int) -> dict[str, float]:
    """Return the bytes of the fullest rank at a level, in the order of the contract."""
    n = its["num_params"]
    shard = len(range(0, n, its["dp"]))  # rank 0 has the largest shard: n / dp rounded up
    return {
        "optimizer": its["optimizer_bytes"] * (n, shard, shard, shard)[level],
        "gradients": its["gradient_bytes"] * (n, n, shard, shard)[level],
        "parameters": its["parameter_bytes"] * (n, n, n, shard)[level],
        "activations": its["activation_bytes"],
        "reserve": its["reserve_gb"] * 1e9,
    }


def right(its: dict[str, Any]) -> tuple[int | None, list[str]]:
    """Try all levels; return the first that fits, and the largest term of each that does not."""
    held = [terms(its, level) for level in range(4)]
    fits = [sum(each.values()) <= its["memory_gib"] * 2**30 for each in held]
    level = fits.index(True) if any(fits) else None
    return level, [max(each, key=each.__getitem__) for each in held[:level]]


ACTIVATIONS, RESERVE = 'setup["activation_bytes"]', 'setup["reserve_gb"] * 1e9'
SHARD, MEMORY = 'setup["num_params"] // setup["dp"]', 'setup["memory_gib"] * 2**30'
LARGEST = "max(terms, key=terms.__getitem__)"
MISTAKES = [
    g.Mistake(
        "does not count activations and reserve whole",
        "ZeRO shards model states only. At every level each rank also holds all activations of its "
        "own microbatch, and CUDA's context, communication buffers and fragmentation.",
        [
            g.patch(ACTIVATIONS, "0"),
            g.patch(RESERVE, "0"),
            g.patch(ACTIVATIONS, f'{ACTIVATIONS} / setup["dp"]'),
            g.patch(ACTIVATIONS, f'{ACTIVATIONS} / setup["dp"] ** (level > 2)'),
        ],
    ),
    g.Mistake(
        "mixes up GB and GiB",
        "The reserve is in GB of 1e9 bytes, the memory in GiB of 2**30 bytes: 7% more.",
        [
            *g.patches(MEMORY, MEMORY.replace("2**30", "1e9"), f"{MEMORY} / 1e9 * 2**30"),
            g.patch(RESERVE, RESERVE.replace("1e9", "2**30")),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not take the lowest level that fits",
        "Higher levels need more communication. Begin with level 0, which shards nothing: it is "
        "the answer where all fits.",
        g.patches("range(4)", "range(1, 4)", "range(3, -1, -1)"),
    ),
    g.Mistake(
        "rounds the shard another way",
        "Shards differ by at most one parameter. The largest has num_params / dp parameters, "
        "rounded up: -(-num_params // dp).",
        g.patches(f"-(-{SHARD})", SHARD, SHARD.replace("//", "/"), f"{SHARD} + 1"),
        hint=3,
    ),
    g.Mistake(
        "shards at another level than ZeRO",
        "Level 1 shards what the optimizer keeps. Level 2 also shards gradients, level 3 also "
        "parameters.",
        [
            g.patch(
                "level >= 1", "level >= 0", "level >= 2", "level >= 1", "level >= 3", "level >= 2"
            ),
            g.patch("level >= 2", "level >= 1"),
        ],
        hint=2,
    ),
    g.Mistake(
        "decides wrongly where it fits to the byte",
        "A level fits if the sum is at most the memory: <=, not <. Add up and compare bytes, since "
        "quotients such as bytes / 1e9 are rounded.",
        g.patch("<= setup", "< setup"),
        hint=3,
    ),
    g.Mistake(
        "does not compare all five terms for the largest",
        "The level is right. The largest term may be activations or reserve too, about which the "
        "next level does nothing. Of equal terms the first in the contract's order counts.",
        [
            g.patch(LARGEST, '["optimizer", "gradients", "parameters", "activations"][level]'),
            *g.patches(
                "max(terms", "max(list(terms)[:3]", "max(list(terms)[:4]", "max([*terms][::-1]"
            ),
        ],
        hint=2,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc",),
    shown="you find the lowest level that fits, to the byte, or that none does, and you know the "
    "largest term of each level below it",
)
