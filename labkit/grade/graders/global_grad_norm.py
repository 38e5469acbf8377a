"""Grade global_grad_norm: each number counted once, gradients scaled in place, 8 bytes sent."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

AXES = ("dp", "pp", "tp")
OTHERS = "other tensors in .grad"


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Meshes of every kind, in every order; gradients that are absent, empty, huge or tiny."""
    # With two orders of the axes, no fixed one is right. Each mesh takes time to make.
    first, second = draw.rng.sample([*itertools.permutations(AXES)], 2)
    little = {"dtype": torch.bfloat16, "share": 0.9}
    listed: dict[int, list[tuple[str, tuple[int, int, int], dict[str, Any]]]] = {
        1: [("averaged", (1, 1, 1), {}), ("not clipped", (1, 1, 1), {"share": 1.5})],
        4: [
            ("averaged", (1, 2, 2), {}),
            ("averaged, not clipped", (2, 1, 2), {"share": draw.rng.uniform(1.2, 4)}),
            ("ZeRO", (2, 1, 2), {"is_zero": True}),
            ("ZeRO", (2, 2, 1), {"is_zero": True}),
            ("gradients absent", (1, 2, 2), {"absent": 0.4}),
            ("a stage without parameters", (1, 4, 1), {"empty": draw.rng.choice((1, 2))}),
            ("gradients of 1e25", (1, 2, 2), {"scale": 1e25}),
            ("gradients of 1e-30", (2, 1, 2), {"scale": 1e-30}),
            ("bfloat16, clipped a little", (1, 2, 2), little),
            ("gradients of 0", (1, 2, 2), {"scale": 0.0}),
        ],
        8: [
            ("averaged", (2, 2, 2), {}),
            ("ZeRO", (2, 2, 2), {"is_zero": True, "axes": second}),
        ],
    }
    return [case(draw, what, sizes, **{"axes": first} | how) for what, sizes, how in listed[n]]


def case(
    draw: g.Draw,
    what: str,
    dp_pp_tp: tuple[int, int, int],
    axes: Sequence[str],
    is_zero: bool = False,
    share: float = 0.1,
    scale: float = 1.0,
    absent: float = 0.0,
    empty: int = -1,
    dtype: torch.dtype = torch.float32,
) -> g.Case:
    """axes: the slowest first. is_zero: gradients are sharded over dp. share: of the norm, for
    max_norm. empty: a stage."""
    sizes = {axis: dp_pp_tp[AXES.index(axis)] for axis in axes}
    made: dict[Any, Tensor | None] = {}

    def one(key: Any, over: Sequence[str], *shape: int, is_tied: bool = False) -> dict[str, Any]:
        if key not in made:
            x = (draw.same(*shape, dtype=torch.float64) * scale).to(dtype)
            made[key] = None if draw.rng.random() < absent else x
        over = over if is_zero else (*over, "dp")
        return {"key": key, "grad": made[key], "copied_over": over, "is_tied": is_tied}

    def stage(dp: int, pp: int, tp: int) -> Iterator[dict[str, Any]]:
        d = dp if is_zero else 0
        if pp == empty:
            return
        for layer in range(2):
            yield one(("matrix", layer, d, pp, tp), (), draw.rng.randrange(1, 5), 7)
            yield one(("bias", layer, d, pp, tp), (), 4)
            yield one(("norm", layer, d, pp), ("tp",), 6)
        yield one(("gate", d, pp), ("tp",))
        yield one(("no rows", d, pp, tp), (), 0, 5)
        if pp in (0, sizes["pp"] - 1):
            yield one(("embedding", d, tp), (), 3, 6, is_tied=True)

    places = itertools.product(*map(range, sizes.values()))  # the last axis varies fastest
    held = g.ByRank(list(stage(**dict(zip(axes, place)))) for place in places)
    label = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    return g.Case(f"{label}, {what}", sizes, held, share * norm_of(held) or 1.0)


def norm_of(held: g.ByRank) -> float:
    """The norm of the whole model's gradient: what is the same has the same key."""
    gradients = {each["key"]: each["grad"] for its in held for each in its}.values()
    return math.hypot(*(float(x.double().norm()) for x in gradients if x is not None))


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """The norm and the gradients of a rank, and how many of them are other tensors than before."""
    sizes, held, max_norm = args
    parameters = []
    for each in held:
        grad = None if each["grad"] is None else each["grad"].clone()
        parameter = nn.Parameter(torch.zeros(3) if grad is None else torch.zeros_like(grad))
        parameter.grad, parameter.is_tied = grad, each["is_tied"]
        parameter.copied_over = tuple(each["copied_over"])
        parameters.append(parameter)
    before = [(x.grad, x.grad is None or x.grad.data_ptr()) for x in parameters]
    norm = watch.function(list(parameters), max_norm, watch.mesh(**sizes))
    after = [(x.grad, x.grad is None or x.grad.data_ptr()) for x in parameters]
    num_others = sum(x is not y or p != q for (x, p), (y, q) in zip(before, after))
    return {"norm": norm, "gradients": [x.grad for x in parameters], OTHERS: num_others}


def right(sizes: dict[str, int], held: g.ByRank, max_norm: float) -> g.ByRank:
    """The norm of all different gradients."""
    norm = norm_of(held)
    factor = max_norm / norm if norm > max_norm else 1.0

    def scaled(x: Tensor | None) -> Tensor | None:
        return None if x is None else (x.double() * factor).to(x.dtype)

    return g.ByRank(
        {"norm": norm, "gradients": [scaled(each["grad"]) for each in its], OTHERS: 0}
        for its in held
    )


def same(got: Any, right: Any, case: g.Case) -> bool:
    """Whether norm and gradients are right but for rounding in the gradients' dtype."""
    return (
        type(got["norm"]) in (int, float)
        and abs(got["norm"] - right["norm"]) <= 1e-5 * right["norm"]
        and got[OTHERS] == right[OTHERS]
        and all(map(is_near, got["gradients"], right["gradients"]))
    )


def is_near(x: Tensor | None, right: Tensor | None) -> bool:
    """Of two gradients."""
    if x is None or right is None:
        return x is right
    rtol = 2e-2 if right.dtype == torch.bfloat16 else 1e-5
    return torch.allclose(x.double(), right.double(), rtol=rtol, atol=1e-38)


NOT_TWICE = "not (parameter.is_tied and is_second_copy)"
COUNTS = f"counts = is_first and {NOT_TWICE}"
ALL = "counts = True"
IS_FIRST = "all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)"
REDUCED = "mesh.world.all_reduce(total)"
ROOT = f"math.sqrt(float({REDUCED}))"
CLIPS, FACTOR = "    if norm > max_norm:\n", "max_norm / norm)"
PARTS = [f"mesh.{axis}.all_reduce(total)" for axis in AXES]
PARTS += [f"mesh.{a}.all_reduce({part})" for a, part in zip(AXES, PARTS[1:] + PARTS[:1])]
OWN = "sum(float(p.grad.double().square().sum()) for p in parameters if p.grad is not None)"


def in_order(axes: Sequence[str]) -> g.Patch:
    """Coordinates are computed from the rank's number."""
    places = f"itertools.product(*(range(getattr(mesh, axis).size) for axis in {axes}))"
    return g.patch(
        *("import math\n", "import itertools\nimport math\n"),
        f"is_first = {IS_FIRST}",
        f"place = dict(zip({axes}, list({places})[mesh.world.rank]))\n"
        '        is_second_copy = place["pp"] == mesh.pp.size - 1 and mesh.pp.size > 1\n'
        "        is_first = all(place[axis] == 0 for axis in parameter.copied_over)",
    )


MISTAKES = [
    g.Mistake(
        "counts copies on every rank",
        "The norm belongs to the model, not to all memory. Every tp rank has the same gradient of "
        "a LayerNorm, and every dp rank the same mean after data parallelism's all-reduce. One "
        "rank of the group counts it: copied_over says along which axes.",
        [
            g.patch(IS_FIRST, IS_FIRST.replace("copied_over", 'copied_over if axis != "tp"')),
            g.patch(IS_FIRST, IS_FIRST.replace("copied_over", 'copied_over if axis != "dp"')),
            g.patch(COUNTS, ALL),
        ],
        hint=2,
    ),
    g.Mistake(
        "counts the tied embedding on both stages, or on none",
        "The first and the last stage have the same gradient of it, and it is one gradient of the "
        "model: one of them counts it. With pp = 1 the only stage is both the first and the last.",
        [
            g.patch(COUNTS, "counts = is_first"),
            g.patch(" and mesh.pp.size > 1", ""),
            g.patch(COUNTS, "counts = is_first and not parameter.is_tied"),
        ],
        hint=2,
    ),
    g.Mistake(
        "leaves out shards",
        "Where a gradient is sharded, each rank has other numbers and counts its own. Only copies "
        "are left to the first rank of a group.",
        [
            g.patch(COUNTS, f"{COUNTS} and {first}")
            for first in (
                "mesh.tp.rank == 0",
                "mesh.dp.rank == 0",
                "mesh.tp.rank == mesh.dp.rank == 0",
            )
        ],
        hint=2,
    ),
    g.Mistake(
        "assumes an order of the axes",
        "Coordinates were computed from the rank's number, as if the axes had a fixed order. Here "
        "they come in any order: ask the groups, for example mesh.tp.rank.",
        [in_order(axes) for axes in itertools.permutations(AXES)],
        hint=2,
    ),
    g.Mistake(
        "does not add up over all ranks",
        "Ranks along each axis may have other parameters or other shards: over tp, over pp, and "
        "over dp where ZeRO shards gradients. Add up the squares of all of them before the root. "
        "Ranks that clip by different norms turn one model into several.",
        [
            *(g.patch(REDUCED, part) for part in ("total", *PARTS)),
            g.patch(REDUCED, "total", COUNTS, ALL),
        ],
    ),
    g.Mistake(
        "adds up norms instead of squares",
        "Norms do not add. The norm of two parts is the root of the sum of their squares. Take the "
        "root once, at the end.",
        [
            g.patch(ROOT, f"float(mesh.world.all_reduce(total.sqrt(){op}))")
            for op in ("", ', op="max"')
        ],
    ),
    g.Mistake(
        "returns the norm after clipping",
        "The norm before clipping is returned: a spike in it shows that training is unstable.",
        g.patch("return norm", "return min(norm, max_norm)"),
    ),
    g.Mistake(
        "squares in a small dtype",
        "In float32 1e25 squared is inf and 1e-30 squared is 0, and bfloat16 drops small squares "
        "beside a large sum. Convert to float64 before you square.",
        [g.patch("grad.double()", "grad"), g.patch("grad.double()", "grad.float()")],
        hint=3,
    ),
    g.Mistake(
        "does not clip in place",
        "Multiply each gradient in place with mul_, and leave None where it is. mul and * make a "
        "new tensor. In .grad it does not help: buckets and ZeRO's flat buffers hold views of the "
        "old one, which stays unclipped.",
        g.patches(
            "parameter.grad.mul_(", "parameter.grad.mul(", "parameter.grad = parameter.grad.mul("
        ),
        hint=3,
    ),
    g.Mistake(
        "uses another factor",
        "The factor is max_norm / norm, once, and 1 where the norm is below max_norm, which is a "
        "limit. An epsilon beside the norm changes small gradients, and 1 / norm scales to 1.",
        [
            g.patch(CLIPS, "    if norm > 0:\n"),
            g.patch(FACTOR, "max_norm / (norm + 1e-6))"),
            g.patch(FACTOR, "(max_norm / norm) ** 2)"),
            g.patch(FACTOR, "1 / norm)"),
        ],
        hint=3,
    ),
    g.Mistake(
        "ranks do not clip alike",
        "All ranks have the same norm and scale all their gradients by it, also copies that they "
        "do not count. By its own gradients, a rank would clip by another factor or not at all, "
        "and copies drift apart.",
        [
            *(
                g.patch(
                    *(CLIPS, f"    own = math.sqrt({own})\n    if own > max_norm:\n"),
                    *(FACTOR, f"max_norm / {norm})"),
                )
                for own in ("total", OWN)
                for norm in ("own", "norm")
            ),
            g.patch("None:  # copies", f"None and {IS_FIRST}:  # copies"),
            g.patch("None:  # copies", f"None and {IS_FIRST} and {NOT_TWICE}:  # copies"),
        ],
        hint=2,
    ),
    g.Mistake(
        "sends more than one number",
        "A rank's squares are one number when they are sent: 8 bytes in float64. Add them up on "
        "the rank first.",
        g.patch(REDUCED, "mesh.world.all_reduce(total.expand(2).contiguous())[0]"),
        over_budget=lambda s: any(e.nbytes > 8 for rank in range(s.n) for e in s.operations(rank)),
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=lambda s: g.Budget(collectives=6),
    same=same,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.zero", "labkit.combined"),
    world_sizes=(4, 8, 1),
    shown="on every mesh each number of the gradient counts once, whether it is sharded, copied, "
    "averaged or tied; all ranks clip by the same norm and send 8 bytes at a time",
)
