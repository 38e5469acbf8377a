"""Grade loss_scaler: single steps from given states, with overflows on no rank, on one, on all."""

from collections.abc import Iterable
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Small and large gradients, an inf or a nan on one rank or on all, ranks without gradients."""
    one, every_rank = draw.rng.randrange(n), range(n)
    other = (one + 1) % n
    found = [
        case(draw, "no overflow", 1),
        case(draw, "the third good step in a row", 2),
        case(draw, "all ranks have an inf", 2, every_rank, inf),
        case(draw, f"rank {one} has an inf", 1, [one], inf),
        case(draw, f"rank {one} has -inf", 1, [one], -inf),
        case(draw, f"rank {one} has a nan", 1, [one], nan, scale=0.5),
        case(draw, "the largest numbers of float16", 0, every_rank, 65504.0),
    ]
    if n > 1:
        found.append(case(draw, f"rank {one} has no gradients", 1, without=one))
        label = f"rank {one} has no gradients, rank {other} an inf"
        found.append(case(draw, label, 1, [other], inf, without=one))
    return found


def case(
    draw: g.Draw,
    label: str,
    count: int,
    ranks: Iterable[int] = (),
    number: float = 0.0,
    scale: float = 1024.0,
    without: int | None = None,
) -> g.Case:
    """Three gradients from 1e-7 to 1e-2, times the scale; on `ranks` the second has `number`."""

    def drawn() -> Tensor:
        exact = [draw.rng.choice((-1, 1)) * 10 ** draw.rng.uniform(-7, -2) for _ in range(4)]
        return (scale * torch.tensor(exact)).half()

    gradients = g.ByRank([drawn() for _ in range(3 * (r != without))] for r in range(draw.n))
    for rank in ranks:
        gradients[rank][1][1:] = number
    scaler = {"scale": scale, "num_good_steps": count, "growth_interval": 3}
    return g.Case(f"{label} (scale {scale:g}, count {count} of 3)", scaler, gradients)


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the step's result, the scaler after it, and the arguments of `update`."""
    scaler, gradients = args
    updates: list[list[Tensor]] = []

    def update(unscaled: list[Tensor]) -> None:
        updates.append([x.clone() for x in unscaled])

    returned = watch.function(scaler, gradients, update, watch.group)
    after = {name: scaler[name] for name in ("scale", "num_good_steps")}
    return {"returned": returned, **after, "calls of update": updates}


def right(scaler: dict[str, Any], gradients: g.ByRank) -> g.ByRank:
    """Return the rules, with all ranks' gradients at hand."""
    scale, count = scaler["scale"], scaler["num_good_steps"] + 1
    is_good = all(bool(x.isfinite().all()) for its in gradients for x in its)
    is_grown = count == scaler["growth_interval"]
    after = {
        "returned": is_good,
        "scale": scale / 2 if not is_good else scale * 2 if is_grown else scale,
        "num_good_steps": count if is_good and not is_grown else 0,
    }
    return g.ByRank(
        {**after, "calls of update": [[x.float() / scale for x in its]] * is_good}
        for its in gradients
    )


TEST = "gradient.isfinite().all()"
UPDATE = 'update([gradient.float() / scaler["scale"] for gradient in gradients])'
MISTAKES = [
    g.Mistake(
        "ranks do not decide together",
        "One rank skips the step or halves its scale, and another does not. Their parameters and "
        "scales differ from now on, and nothing crashes. Reduce a flag, and use only its result.",
        g.patch('group.all_reduce(torch.tensor([float(is_fine)]), op="min")', "is_fine"),
        wrong=lambda s: any(y[name] != s.y[name] for y in s.ys for name in ("returned", "scale")),
    ),
    g.Mistake(
        "does not find every inf and nan",
        "An inf, -inf or nan in any gradient, on any rank, is enough: isfinite() finds all three. "
        'nan is not equal to anything, and not larger. Reduce "overflow" with max, or "no '
        'overflow" with min.',
        [
            g.patch('op="min"', 'op="max"'),
            *g.patches(TEST, "not gradient.isinf().any()", "not gradient.isnan().any()"),
        ],
        hint=3,
    ),
    g.Mistake(
        "skips a step without an overflow",
        "All gradients are finite here. A sum or norm in float16 may overflow by itself. And "
        "65504, the largest number of float16, is no overflow.",
        g.patch(TEST, "gradient.sum().isfinite()"),
        hint=3,
    ),
    g.Mistake(
        "divides in float16",
        "The scale has lifted small gradients above 6e-8. A quotient in float16 makes them 0 "
        "again, or rounds them. Convert to float32 first.",
        g.patch('gradient.float() / scaler["scale"]', '(gradient / scaler["scale"]).float()'),
    ),
    g.Mistake(
        "does not divide by the scale of this backward",
        "The loss was multiplied by the scale, so every gradient is, too: divide by the scale that "
        "backward was made with, not by one that has doubled since.",
        [
            g.patch('gradient.float() / scaler["scale"]', "gradient.float()"),
            g.patch(f"    {UPDATE}\n", "", "    return True", f"    {UPDATE}\n    return True"),
        ],
        hint=3,
    ),
    g.Mistake(
        "a rank without gradients does not call update",
        "An optimizer counts its steps, and the ranks' counts must agree. Every rank calls update "
        "in a step that is made, also with an empty list.",
        g.patch(UPDATE, f"if gradients:\n        {UPDATE}"),
        hint=3,
    ),
]

GRADER = g.OnRanks(
    functions=("scaled_step",),
    cases=cases,
    right=right,
    call=call,
    keeps_arguments=False,
    budget=lambda s: g.Budget(collectives=1, payload_bytes=8),
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.precision",),
    world_sizes=(3, 2, 1),
    shown="all ranks skip a step with an inf or a nan on any of them, the scale halves and doubles "
    "when it should, and the optimizer's gradients lost no digit",
)
