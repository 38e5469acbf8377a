"""Grade loss_scaler: single steps from given states, with overflows on no rank, on one, on all."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    close,
    patch,
)

Tensor = torch.Tensor
Scaler = Mapping[str, Any]
INF, NAN = math.inf, math.nan


def cases(n: int, draw: Draw) -> list[Case]:
    """Small and large gradients, an inf or a nan on one rank or on all, ranks without gradients."""
    one = draw.rng.randrange(n)
    other = (one + 1) % n
    found = [
        case("no overflow", draw, 1),
        case("the third good step in a row", draw, 2),
        case("all ranks have an inf", draw, 2, dict.fromkeys(range(n), INF)),
        case(f"rank {one} has an inf in its last gradient", draw, 1, {one: INF}, tensor=2),
        case(f"rank {one} has -inf", draw, 1, {one: -INF}, tensor=1),
        case(f"rank {one} has a nan", draw, 1, {one: NAN}, scale=0.5),
        case("the largest numbers of float16", draw, 0, dict.fromkeys(range(n), 65504.0)),
    ]
    if n > 1:
        without = f"rank {one} has no gradients"
        found.append(case(without, draw, 1, without=one))
        found.append(
            case(f"{without}, rank {other} has an inf", draw, 1, {other: INF}, without=one)
        )
    return found


def case(
    label: str,
    draw: Draw,
    count: int,
    spoilt: Mapping[int, float] | None = None,
    *,
    scale: float = 1024.0,
    tensor: int = 0,
    without: int | None = None,
) -> Case:
    """Three gradients from 1e-7 to 1e-2, times the scale; `spoilt`: a rank's inf or nan."""
    gradients: list[list[Tensor]] = []
    for rank in range(draw.n):
        sizes = [draw.rng.randrange(2, 5) for _ in range(3 * (rank != without))]
        exact = [[signed(draw.rng) * scale for _ in range(size)] for size in sizes]
        gradients.append([torch.tensor(each).half() for each in exact])
        if rank in (spoilt or {}):
            gradients[-1][tensor][1:] = spoilt[rank]
    scaler = {"scale": scale, "num_good_steps": count, "growth_interval": 3}
    return Case(f"{label} (scale {scale:g}, count {count} of 3)", scaler, ByRank(gradients))


def signed(rng: random.Random) -> float:
    """From 1e-7 to 1e-2, with a sign."""
    return rng.choice((-1, 1)) * 10 ** rng.uniform(-7, -2)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """What the step returned, the scaler after it, and what `update` was called with."""
    scaler, gradients = args
    updates: list[list[Tensor]] = []

    def update(unscaled: list[Tensor]) -> None:
        if not isinstance(unscaled, list | tuple):
            raise TypeError(f"update takes a list of tensors, not a {type(unscaled).__name__}")
        updates.append([x.clone() for x in unscaled])

    returned = watch.function(scaler, gradients, update, watch.group)
    return {
        "returned": returned,
        "scale": scaler["scale"],
        "num_good_steps": scaler["num_good_steps"],
        "calls of update": updates,
    }


def is_spoilt(gradients: Sequence[Tensor]) -> bool:
    """Whether there is an inf or a nan."""
    return not all(math.isfinite(number) for x in gradients for number in x.flatten().tolist())


def step(
    scaler: Scaler,
    gradients: ByRank,
    *,
    found: Callable[[Sequence[Tensor]], bool] = is_spoilt,
    skips: Callable[[list[bool]], bool] = any,
    unscaled: Callable[[Tensor, float], Tensor] = lambda x, scale: x.float() / scale,
) -> ByRank:
    """Results by rank; a mistake replaces one of the rules."""
    scale, count = scaler["scale"], scaler["num_good_steps"] + 1
    is_skipped = skips([found(its) for its in gradients])
    is_grown = count == scaler["growth_interval"]
    result = {
        "returned": not is_skipped,
        "scale": scale / 2 if is_skipped else scale * 2 if is_grown else scale,
        "num_good_steps": 0 if is_skipped or is_grown else count,
    }
    updates = [[] if is_skipped else [[unscaled(x, scale) for x in its]] for its in gradients]
    return ByRank({**result, "calls of update": each} for each in updates)


def on_rank_0(*changes: dict[str, Any]) -> list[Callable[..., Any]]:
    """Formulas: rank 0's result by other rules."""
    return [lambda *args, its=each: step(*args, **its)[0] for each in changes]


def parts(s: Observed, part: str) -> list[Any]:
    """One part of the results, by rank."""
    return [y[part] for y in s.ys]


def overflows(s: Observed) -> bool:
    """Whether a rank of this case has an inf or a nan."""
    return any(map(is_spoilt, s.args[1]))


def is_right(s: Observed, *names: str) -> bool:
    """Whether these parts are right on all ranks."""
    return all(close(y[name], r[name]) for y, r in zip(s.ys, s.right) for name in names)


FLAG = "all(bool(gradient.isfinite().all()) for gradient in gradients)"
REDUCED = 'bool(group.all_reduce(torch.tensor([float(is_fine)]), op="min"))'
UPDATE = 'update([gradient.float() / scaler["scale"] for gradient in gradients])'
GROWS = """    if scaler["num_good_steps"] == scaler["growth_interval"]:
        scaler["scale"] *= 2
        scaler["num_good_steps"] = 0
"""
COUNTS = f"""{UPDATE}
    scaler["num_good_steps"] += 1
{GROWS}"""

MISTAKES = [
    Mistake(
        "ranks do not decide together",
        "One rank skips the step or halves its scale, and another does not. Their parameters and "
        "scales differ from now on, and nothing crashes. Reduce a flag, and use only its result.",
        seen=lambda s: any(
            parts(s, name) != parts(s, name)[:1] * s.n for name in ("returned", "scale")
        ),
        made_by=patch(REDUCED, "bool(is_fine)"),
    ),
    Mistake(
        "skips only if all ranks overflow",
        'One inf on one rank is enough. Reduce "overflow" with max, or "no overflow" with min.',
        formula=on_rank_0({"skips": all}),
        made_by=patch('op="min"', 'op="max"'),
    ),
    Mistake(
        "does not find every inf and nan",
        "An overflow may be inf, -inf or nan, in any gradient: isfinite() finds all three. nan is "
        "not equal to anything, and not larger.",
        hint=3,
        formula=on_rank_0(
            {"found": lambda its: any(x.isinf().any() for x in its)},
            {"found": lambda its: any(x.isnan().any() for x in its)},
            {"found": lambda its: any((x == INF).any() or x.isnan().any() for x in its)},
            {"found": lambda its: is_spoilt(its[:1])},
            {"found": lambda its: is_spoilt(its[-1:])},
            {"found": lambda its: False},
        ),
        made_by=patch(FLAG, FLAG.replace("isfinite().all()", "isinf().any() == False")),
    ),
    Mistake(
        "skips a step without an overflow",
        "All gradients are finite here. A sum or norm in float16 may overflow by itself. And "
        "65504, the largest number of float16, is no overflow.",
        hint=3,
        seen=lambda s: not overflows(s) and not any(parts(s, "returned")),
        made_by=patch(FLAG, FLAG.replace("isfinite().all()", "sum().isfinite()")),
    ),
    Mistake(
        "makes the step before it looks",
        "update was called with an inf or a nan, so the parameters are lost. Find out on all ranks "
        "first, then call update.",
        seen=lambda s: (
            overflows(s) and is_right(s, "returned", "scale") and any(parts(s, "calls of update"))
        ),
        made_by=patch(
            f"    {UPDATE}\n", "", "    is_fine = all(", f"    {UPDATE}\n    is_fine = all("
        ),
    ),
    Mistake(
        "replaces inf and nan, and makes the step",
        "The true value of what overflowed is unknown, and 0 is not near it. Skip the step, and "
        "halve the scale, which is too high.",
        seen=lambda s: (
            overflows(s)
            and all(parts(s, "returned"))
            and all(calls and not is_spoilt(calls[0]) for calls in parts(s, "calls of update"))
        ),
        made_by=patch(FLAG, "True", ".float()", ".float().nan_to_num(0, 0, 0)"),
    ),
    Mistake(
        "divides in float16",
        "The scale has lifted small gradients above 6e-8. A quotient in float16 makes them 0 "
        "again, or rounds them. Convert to float32 first.",
        formula=on_rank_0(
            {"unscaled": lambda x, scale: (x / scale).float()},
            {"unscaled": lambda x, scale: x / scale},
        ),
        made_by=patch(UPDATE, 'update([(g / scaler["scale"]).float() for g in gradients])'),
    ),
    Mistake(
        "passes scaled gradients to the optimizer",
        "The loss was multiplied by the scale, so every gradient is, too: divide by it first.",
        formula=on_rank_0(
            {"unscaled": lambda x, scale: x.float()},
            {"unscaled": lambda x, scale: x},
        ),
        made_by=patch(UPDATE, "update([gradient.float() for gradient in gradients])"),
    ),
    Mistake(
        "divides by the next scale",
        "The scale doubled before the division. Divide by the scale that backward was made with.",
        hint=3,
        seen=lambda s: (
            is_right(s, "scale", "num_good_steps")
            and not is_right(s, "calls of update")
            and all(
                close(y["calls of update"], [[x / 2 for x in its] for its in r["calls of update"]])
                for y, r in zip(s.ys, s.right)
            )
        ),
        made_by=patch(COUNTS, COUNTS.replace(f"{UPDATE}\n    ", "") + f"    {UPDATE}\n"),
    ),
    Mistake(
        "does not halve the scale",
        "After an overflow the scale is half of what it was, without a lower limit.",
        hint=3,
        seen=lambda s: (
            overflows(s)
            and is_right(s, "returned", "num_good_steps", "calls of update")
            and parts(s, "scale") == parts(s, "scale")[:1] * s.n
        ),
        made_by=patch('["scale"] /= 2', '["scale"] = max(1.0, scaler["scale"] / 2)'),
    ),
    Mistake(
        "an overflow does not reset the count",
        "growth_interval good steps in a row are needed. A skipped step is not a good one, and the "
        "count starts at 0 again.",
        hint=2,
        seen=lambda s: (
            overflows(s) and is_right(s, "calls of update") and all(parts(s, "num_good_steps"))
        ),
        made_by=patch('/= 2\n        scaler["num_good_steps"] = 0', "/= 2"),
    ),
    Mistake(
        "the count goes on after the scale has doubled",
        "num_good_steps counts since the last change of the scale: it is 0 after doubling, too.",
        hint=2,
        seen=lambda s: (
            not overflows(s)
            and is_right(s, "scale")
            and parts(s, "num_good_steps") == [s.args[0]["growth_interval"]] * s.n
        ),
        made_by=patch('*= 2\n        scaler["num_good_steps"] = 0', "*= 2"),
    ),
    Mistake(
        "grows at another count",
        "The step that makes num_good_steps equal to growth_interval doubles the scale, not the "
        "step before or after it.",
        hint=3,
        seen=lambda s: (
            not overflows(s)
            and is_right(s, "returned", "calls of update")
            and not is_right(s, "scale")
        ),
        made_by=patch('["num_good_steps"] == scaler', '["num_good_steps"] > scaler'),
    ),
    Mistake(
        "a rank without gradients does not call update",
        "An optimizer counts its steps, and the ranks' counts must agree. Every rank calls update "
        "in a step that is made, also with an empty list.",
        hint=3,
        seen=lambda s: (
            is_right(s, "returned", "scale")
            and any(
                not calls and not its for calls, its in zip(parts(s, "calls of update"), s.args[1])
            )
        ),
        made_by=patch(UPDATE, f"if gradients:\n        {UPDATE}"),
    ),
    Mistake(
        "a rank without gradients leaves the others waiting",
        "A rank with an empty list has no overflow, but the others wait for its flag. It takes "
        "part in the all-reduce, and calls update with an empty list.",
        hint=3,
        outcome=Outcome.HUNG,
        seen=lambda s: any(r.returned and not its for r, its in zip(s.ranks, s.args[1])),
        made_by=patch(
            "    is_fine = all(", "    if not gradients:\n        return True\n    is_fine = all("
        ),
    ),
]

GRADER = OnRanks(
    name="loss_scaler",
    functions=("scaled_step",),
    cases=cases,
    right=step,
    call=call,
    num_arguments=4,
    keeps_arguments=False,
    budget=lambda s: Budget(collectives=1, payload_bytes=8),
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.precision",),
    world_sizes=(3, 2, 1),
    shown="all ranks skip a step with an inf or a nan on any of them, the scale halves and doubles "
    "when it should, and the optimizer's gradients lost no digit",
)
