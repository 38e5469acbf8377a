"""Grade model_state_bytes: bytes on the fullest rank, for drawn models, recipes and levels."""

from typing import Any

from labkit import calc
from labkit.grade import grader as g


def cases(draw: g.Draw) -> list[g.Case]:
    """Return every level of each model: sizes that divide and others, one rank, few parameters."""
    rng = draw.rng
    models = [
        (64 * rng.randrange(10**6, 10**8), (2, 2, 4, [4, 4]), 64),
        (1 + 48 * rng.randrange(10**7), (2, 4, 4, [4, 4]), 48),
        (rng.randrange(10**9, 10**11), (4, 4, 0, [4, 4]), rng.choice((7, 24, 1000))),
        (rng.randrange(100, 1000), (4, 4, 0, [4]), rng.randrange(3, 9)),
        (rng.randrange(10**9, 10**11) | 1, (4, 2, 4, [2, 4]), rng.choice((8, 64))),
        (5, (2, 1, 4, [4, 2, 1]), 8),
        (rng.randrange(10**5, 10**6), (1, 2, 2, [4, 4]), 1),
        (10, (2, 2, 4, [4, 1]), 4),
    ]
    keys = ("parameter_bytes", "gradient_bytes", "master_bytes", "moment_bytes")
    return [
        g.Case(f"{num:,} parameters, {recipe}, zero {zero}, {dp} ranks", num, recipe, zero, dp)
        for num, sizes, dp in models
        for recipe in [dict(zip(keys, sizes))]
        for zero in range(4)
    ]


def right(num: int, recipe: dict[str, Any], zero: int, dp: int) -> int:
    """By the calculator."""
    its = calc.Recipe(name="drawn", **{**recipe, "moment_bytes": tuple(recipe["moment_bytes"])})
    return int(calc.model_state_bytes(num, its, zero, dp))


SHARD, STATES = "-(-num_params // dp)", "num_states * optimizer_bytes"
MASTER, MOMENTS = 'recipe["master_bytes"]', 'sum(recipe["moment_bytes"])'
EACH_MOMENT = 'sum(up(each, 1) for each in recipe["moment_bytes"])'
MISTAKES = [
    g.Mistake(
        "shards at another level than ZeRO",
        "Level 0 shards nothing, level 1 what the optimizer keeps, level 2 also gradients, level 3 "
        "also parameters. At level 1 the ZeRO paper's 16 bytes become 4 + 12/dp, since parameters "
        "and gradients are still whole on every rank.",
        [
            g.patch(">= 1", f"> {a}", ">= 2", f"> {b}", ">= 3", f"> {c}")
            for a, b, c in ((0, 0, 0), (0, 1, 1), (0, 0, 2), (1, 0, 2), (1, 2, 3), (3, 3, 3))
        ]
        + [g.patch("zero >= 1", "zero >= 0")],
    ),
    g.Mistake(
        "a level does not shard what the one before it shards",
        "Each level keeps what the one before it shards: level 2 shards optimizer states too, and "
        "level 3 shards all.",
        [
            g.patch("zero >= 1", "zero in (1, 3)"),
            g.patch("zero >= 1", "zero == 1", "zero >= 2", "zero == 2"),
        ],
    ),
    g.Mistake(
        "shards the master copy at another level",
        "The optimizer updates the master copy, each rank its own shard of it. It is sharded with "
        "the moments, from level 1 on.",
        [
            g.patch(f"{MASTER} + ", "", STATES, f"{STATES} + {number} * {MASTER}")
            for number in ("num_params", "num_gradients", "num_parameters")
        ],
    ),
    g.Mistake(
        "rounds the shard another way",
        "Some rank holds one parameter more than others only where dp does not divide num_params. "
        "The largest shard has num_params / dp parameters, rounded up: -(-num_params // dp).",
        g.patches(SHARD, "num_params // dp", "num_params / dp", "num_params // dp + 1"),
        hint=3,
    ),
    g.Mistake(
        "rounds bytes instead of parameters",
        "A parameter is on one rank with all of its bytes: ceil(num_params / dp) parameters, each "
        "times its bytes.",
        [
            g.patch(
                "return (",
                "up = lambda size, level: -(-num_params * size // (dp if zero >= level else 1))\n"
                '    return up(recipe["parameter_bytes"], 3) + up(recipe["gradient_bytes"], 2)'
                f" + {states}\n    return (",
            )
            for states in ("up(optimizer_bytes, 1)", f"up({MASTER}, 1) + {EACH_MOMENT}")
        ],
        hint=3,
    ),
    g.Mistake(
        "does not count the copies that the recipe has",
        "They are parameters, gradients, the master copy and, for each other value, an entry of "
        "moment_bytes. Adam in mixed precision has 2 + 2 + 12 bytes in all, other recipes others.",
        g.patches(
            f"{MASTER} + {MOMENTS}", "12", "8", MOMENTS, MASTER, f"{MASTER} + {MOMENTS[4:-1]}[0]"
        )
        + g.patches(
            "return (", "num_parameters = 0\n    return (", "num_gradients = 0\n    return ("
        ),
    ),
    g.Mistake(
        "takes 16 bytes per parameter for every recipe and level",
        "16 bytes are what Adam in mixed precision keeps on one rank, where nothing is sharded. "
        "Here the recipe says the bytes, and the level what each rank has only in part.",
        g.patch("return (", "return 16 * num_params\n    ("),
    ),
    g.Mistake(
        "adds up all ranks",
        "Asked are the bytes of one rank, the one that holds most.",
        g.patch(f"{STATES}\n    )", f"{STATES}\n    ) * dp"),
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    mistakes=MISTAKES,
    closed=("labkit.calc",),
    shown="you know to the byte what the fullest rank holds at every level, for any recipe, also "
    "where the ranks do not divide the parameters",
)
