"""Grade loss_scaler: single steps from given states, with overflows on no rank, on one, on all."""

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Small and large gradients, an inf or a nan on one rank or on all, ranks without gradients."""
    one = draw.rng.randrange(n)
    other = (one + 1) % n
    found = [
        case("no overflow", draw, 1),
        case("the third good step in a row", draw, 2),
        case("all ranks have an inf", draw, 2, dict.fromkeys(range(n), inf)),
        case(f"rank {one} has an inf in its last gradient", draw, 1, {one: inf}, tensor=2),
        case(f"rank {one} has -inf", draw, 1, {one: -inf}, tensor=1),
        case(f"rank {one} has a nan", draw, 1, {one: nan}, scale=0.5),
        case("the largest numbers of float16", draw, 0, dict.fromkeys(range(n), 65504.0)),
    ]
    if n > 1:
        label = f"rank {one} has no gradients"
        found.append(case(label, draw, 1, without=one))
        found.append(case(f"{label}, rank {other} has an inf", draw, 1, {other: inf}, without=one))
    return found


def case(
    label: str,
    draw: g.Draw,
    count: int,
    spoilt: Mapping[int, float] | None = None,
    *,
    scale: float = 1024.0,
    tensor: int = 0,
    without: int | None = None,
) -> g.Case:
    """Three gradients from 1e-7 to 1e-2, times the scale; `spoilt`: a rank's inf or nan."""

    def drawn() -> Tensor:
        size = draw.rng.randrange(2, 5)
        exact = [draw.rng.choice((-1, 1)) * 10 ** draw.rng.uniform(-7, -2) for _ in range(size)]
        return (scale * torch.tensor(exact)).half()

    gradients = g.ByRank([drawn() for _ in range(3 * (r != without))] for r in range(draw.n))
    for rank, number in (spoilt or {}).items():
        gradients[rank][tensor][1:] = number
    scaler = {"scale": scale, "num_good_steps": count, "growth_interval": 3}
    return g.Case(f"{label} (scale {scale:g}, count {count} of 3)", scaler, gradients)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """What the step returned, the scaler after it, and what `update` was called with."""
    scaler, gradients = args
    updates: list[list[Tensor]] = []

    def update(unscaled: list[Tensor]) -> None:
        if not isinstance(unscaled, list | tuple):
            raise TypeError(f"update takes a list of tensors, not a {type(unscaled).__name__}")
        updates.append([x.clone() for x in unscaled])

    returned = watch.function(scaler, gradients, update, watch.group)
    after = {name: scaler[name] for name in ("scale", "num_good_steps")}
    return {"returned": returned, **after, "calls of update": updates}


def right(scaler: dict[str, Any], gradients: g.ByRank) -> g.ByRank:
    """The rules, with all ranks' gradients at hand."""
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


FLAG = "all(bool(gradient.isfinite().all()) for gradient in gradients)"
REDUCED = 'bool(group.all_reduce(torch.tensor([float(is_fine)]), op="min"))'
LOOK = "    is_fine = all("
UPDATE = 'update([gradient.float() / scaler["scale"] for gradient in gradients])'
HALVE, DOUBLE = 'scaler["scale"] /= 2', 'scaler["scale"] *= 2'
RESET = '\n        scaler["num_good_steps"] = 0'
GROWS = f"""    scaler["num_good_steps"] += 1
    if scaler["num_good_steps"] == scaler["growth_interval"]:
        {DOUBLE}{RESET}
"""


def is_fine_if(*tests: str) -> list[g.Patch]:
    """Programs that look for an overflow with another test of a gradient."""
    return [g.patch(FLAG, FLAG.replace("isfinite().all()", test)) for test in tests]


MISTAKES = [
    g.Mistake(
        "ranks do not decide together",
        "One rank skips the step or halves its scale, and another does not. Their parameters and "
        "scales differ from now on, and nothing crashes. Reduce a flag, and use only its result.",
        g.patch(REDUCED, "bool(is_fine)"),
        seen=lambda s: any(y[name] != s.y[name] for y in s.ys for name in ("returned", "scale")),
    ),
    g.Mistake(
        "does not find every inf and nan",
        "An inf, -inf or nan in any gradient, on any rank, is enough: isfinite() finds all three. "
        'nan is not equal to anything, and not larger. Reduce "overflow" with max, or "no '
        'overflow" with min.',
        [
            g.patch('op="min"', 'op="max"'),
            g.patch(FLAG, "True"),
            g.patch(FLAG, FLAG.replace("in gradients", "in gradients[:1]")),
            g.patch(FLAG, FLAG.replace("in gradients", "in gradients[-1:]")),
            *is_fine_if(
                "isinf().logical_not().all()",
                "isnan().logical_not().all()",
                "nan_to_num(torch.inf, torch.inf, 0).isfinite().all()",
            ),
        ],
        hint=3,
    ),
    g.Mistake(
        "skips a step without an overflow",
        "All gradients are finite here. A sum or norm in float16 may overflow by itself. And "
        "65504, the largest number of float16, is no overflow.",
        is_fine_if("sum().isfinite()", "norm().isfinite()", "abs().max() < 65504"),
        hint=3,
    ),
    g.Mistake(
        "makes the step in spite of an overflow",
        "The true value of what overflowed is unknown, and neither inf nor 0 is near it. Find out "
        "on all ranks first, then call update, or skip the step and halve the scale.",
        [
            g.patch(f"    {UPDATE}\n", "", LOOK, f"    {UPDATE}\n{LOOK}"),
            g.patch(FLAG, "True", ".float()", ".float().nan_to_num(0, 0, 0)"),
        ],
        hint=2,
    ),
    g.Mistake(
        "divides in float16",
        "The scale has lifted small gradients above 6e-8. A quotient in float16 makes them 0 "
        "again, or rounds them. Convert to float32 first.",
        [
            g.patch(UPDATE, f"update([{quotient} for g in gradients])")
            for quotient in ('(g / scaler["scale"]).float()', 'g / scaler["scale"]')
        ],
    ),
    g.Mistake(
        "does not divide by the scale of this backward",
        "The loss was multiplied by the scale, so every gradient is, too: divide by the scale that "
        "backward was made with, not by one that has doubled since.",
        [
            g.patch(UPDATE, "update([gradient.float() for gradient in gradients])"),
            g.patch(UPDATE, "update(gradients)"),
            g.patch(f"    {UPDATE}\n{GROWS}", f"{GROWS}    {UPDATE}\n"),
        ],
        hint=3,
    ),
    g.Mistake(
        "does not halve the scale",
        "After an overflow the scale is half of what it was, without a lower limit.",
        [
            g.patch(HALVE, 'scaler["scale"] = max(1.0, scaler["scale"] / 2)'),
            g.patch(f"        {HALVE}\n", ""),
        ],
        hint=3,
    ),
    g.Mistake(
        "counts good steps in another way",
        "num_good_steps counts good steps since the last change of the scale: it is 0 after a "
        "skipped step, and after doubling. The step that makes it equal to growth_interval doubles "
        "the scale, not the one before or after.",
        [
            g.patch(HALVE + RESET, HALVE),
            g.patch(DOUBLE + RESET, DOUBLE),
            g.patch('["num_good_steps"] == scaler', '["num_good_steps"] > scaler'),
            g.patch('["num_good_steps"] == scaler', '["num_good_steps"] + 1 >= scaler'),
        ],
        hint=2,
    ),
    g.Mistake(
        "a rank without gradients does not call update",
        "An optimizer counts its steps, and the ranks' counts must agree. Every rank calls update "
        "in a step that is made, also with an empty list.",
        g.patch(UPDATE, f"if gradients:\n        {UPDATE}"),
        hint=3,
    ),
    g.Mistake(
        "a rank without gradients leaves the others waiting",
        "A rank with an empty list has no overflow, but the others wait for its flag. It takes "
        "part in the all-reduce, and calls update with an empty list.",
        g.patch(LOOK, f"    if not gradients:\n        return True\n{LOOK}"),
        hung=lambda s: any(r.returned and not its for r, its in zip(s.ranks, s.args[1])),
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
