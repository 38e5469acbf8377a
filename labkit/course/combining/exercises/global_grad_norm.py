"""Grade global_grad_norm: each number counted once, gradients scaled in place, 8 bytes sent."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from labkit.grade import grader as g

AXES = ("dp", "pp", "tp")
PARAMETERS: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    # The shape, and the axes along which all ranks have the same gradient; dp may be one more.
    "matrix": ((3, 7), ()),
    "norm": ((6,), ("tp",)),
    "gate": ((), ("tp",)),
    "no rows": ((0, 5), ()),
    "unused": ((4,), ()),
    "embedding": ((3, 6), ("pp",)),
}


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Meshes of every kind; averaged and sharded gradients, huge and tiny ones."""
    if n == 1:
        return [case(draw, f"max_norm {x} * norm", (1, 1, 1), share=x) for x in (0.9, 1.5)]
    if n == 8:
        return [case(draw, x, (2, 2, 2), is_zero=x == "ZeRO") for x in ("averaged", "ZeRO")]
    return [
        case(draw, "averaged", (1, 2, 2)),
        case(draw, "averaged, not clipped", (2, 1, 2), share=draw.rng.uniform(1.2, 4)),
        case(draw, "ZeRO", (2, 1, 2), is_zero=True),
        case(draw, "ZeRO", (2, 2, 1), is_zero=True),
        case(draw, "a stage without parameters", (1, 4, 1), empty=draw.rng.choice((1, 2))),
        case(draw, "gradients of 1e25", (1, 2, 2), scale=1e25),
        case(draw, "gradients of 1e-30", (2, 1, 2), scale=1e-30),
        case(draw, "bfloat16", (1, 2, 2), share=0.1, dtype=torch.bfloat16),
        case(draw, "gradients of 0", (1, 2, 2), scale=0.0),
    ]


def case(
    draw: g.Draw,
    what: str,
    dp_pp_tp: tuple[int, int, int],
    is_zero: bool = False,
    share: float = 0.9,
    scale: float = 1.0,
    empty: int = -1,
    dtype: torch.dtype = torch.float32,
) -> g.Case:
    """is_zero: gradients are sharded over dp. share: of the norm, for max_norm. empty: a stage."""
    sizes = {axis: dp_pp_tp[AXES.index(axis)] for axis in draw.rng.sample(AXES, 3)}
    gradients: dict[Any, Tensor | None] = {}

    def held_at(place: dict[str, int]) -> Iterator[tuple[Tensor | None, tuple[str, ...], bool]]:
        for name, (shape, copied) in PARAMETERS.items():
            is_tied = name == "embedding"
            if place["pp"] == empty or (is_tied and 0 < place["pp"] < sizes["pp"] - 1):
                continue
            over = copied if is_zero else (*copied, "dp")
            key = name, *(place[axis] for axis in AXES if axis not in over)
            if key not in gradients:
                x = (draw.same(*shape, dtype=torch.float64) * scale).to(dtype)
                gradients[key] = None if name == "unused" else x
            yield gradients[key], tuple(axis for axis in over if axis != "pp"), is_tied

    places = itertools.product(*map(range, sizes.values()))  # the last axis varies fastest
    held = g.ByRank(list(held_at(dict(zip(sizes, place)))) for place in places)
    norm = math.hypot(*(float(x.double().norm()) for x in gradients.values() if x is not None))
    label = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    return g.Case(f"{label}, {what}", sizes, held, share * norm or 1.0, known=norm)


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """The norm, and what is in the gradients' own memory afterwards."""
    sizes, held, max_norm = args
    parameters, memory = [], []
    for gradient, copied_over, is_tied in held:
        grad = None if gradient is None else torch.stack([gradient.t()])[0].t()
        parameter = nn.Parameter(torch.zeros(3) if grad is None else torch.zeros_like(grad))
        parameter.grad, parameter.copied_over, parameter.is_tied = grad, copied_over, is_tied
        parameters.append(parameter)
        memory.append(None if grad is None else grad.view_as(grad))
    norm = watch.function(list(parameters), max_norm, watch.mesh(**sizes))
    after = [x.grad if own is None else own for x, own in zip(parameters, memory)]
    return {"norm": norm, "gradients": after}


def right(sizes: dict[str, int], held: g.ByRank, max_norm: float, known: float) -> g.ByRank:
    """known: the norm of all different gradients."""
    factor = max_norm / known if known > max_norm else 1.0

    def scaled(x: Tensor | None) -> Tensor | None:
        return None if x is None else (x.double() * factor).to(x.dtype)

    return g.ByRank({"norm": known, "gradients": [scaled(x) for x, *_ in its]} for its in held)


def same(got: Any, right: Any, case: g.Case) -> bool:
    """Return whether norm and gradients are right up to rounding in the gradients' dtype."""
    return (
        type(got["norm"]) in (int, float)
        and abs(got["norm"] - right["norm"]) <= 1e-5 * right["norm"]
        and g.close(got["gradients"], right["gradients"], case, steps=64)
    )


IS_FIRST = "all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)"
NOT_TWICE = "not (parameter.is_tied and is_second_copy)"
COUNTS = f"counts = is_first and {NOT_TWICE}"
REDUCED = "mesh.world.all_reduce(total)"
CLIPS = "if norm > max_norm:"
MISTAKES = [
    g.Mistake(
        "counts copies on every rank",
        "The norm belongs to the model, not to all memory. Every tp rank has the same gradient of "
        "a LayerNorm, and every dp rank the same mean after data parallelism's all-reduce. One "
        "rank of the group counts it: copied_over says along which axes.",
        [
            g.patch(IS_FIRST, IS_FIRST.replace("copied_over", 'copied_over if axis != "tp"')),
            g.patch(COUNTS, "counts = True"),
        ],
        hint=2,
    ),
    g.Mistake(
        "counts the tied embedding on both stages, or on none",
        "The first and the last stage have the same gradient of it, and it is one gradient of the "
        "model: one of them counts it. With pp = 1 the only stage is both the first and the last.",
        [g.patch(COUNTS, "counts = is_first"), g.patch(" and mesh.pp.size > 1", "")],
        hint=2,
    ),
    g.Mistake(
        "leaves out ranks that have other gradients",
        "Ranks along each axis may have other parameters or other shards: over tp, over pp, and "
        "over dp where ZeRO shards gradients. Each of them counts its own, and mesh.world adds up "
        "the squares of all.",
        [
            g.patch(REDUCED, "mesh.pp.all_reduce(mesh.tp.all_reduce(total))"),
            g.patch(REDUCED, "mesh.tp.all_reduce(total)"),
            g.patch(COUNTS, f"{COUNTS} and mesh.dp.rank == 0"),
        ],
    ),
    g.Mistake(
        "adds up norms instead of squares",
        "Norms do not add. Add up the squares of all parts, and take the root once, at the end.",
        [
            g.patch(f"math.sqrt(float({REDUCED}))", "float(mesh.world.all_reduce(total.sqrt()))"),
            g.patch("square().sum()", "norm()", "math.sqrt(", "("),
        ],
    ),
    g.Mistake(
        "has squares in a small dtype",
        "In float32 1e25 squared is inf and 1e-30 squared is 0, and bfloat16 drops small squares "
        "beside a large sum. Square, add up and send in float64.",
        g.patches("double().square().sum()", "float().square().sum()", "norm().double() ** 2"),
        hint=3,
    ),
    g.Mistake(
        "does not clip in place",
        "Multiply each gradient in place, with mul_, also one that is not contiguous: there "
        "flatten() copies. Buckets and ZeRO's flat buffers hold views of the old tensor.",
        g.patches("parameter.grad.mul_(", "parameter.grad.mul(", "parameter.grad.flatten().mul_("),
        hint=3,
    ),
    g.Mistake(
        "uses another factor",
        "The factor is max_norm / norm, and 1 where the norm is below max_norm, which is a limit. "
        "An epsilon beside the norm changes small gradients.",
        [g.patch(CLIPS, "if norm > 0:"), g.patch("max_norm / norm)", "max_norm / (norm + 1e-6))")],
        hint=3,
    ),
    g.Mistake(
        "ranks do not clip alike",
        "All ranks clip by the norm of the whole gradient, not by that of their own, and scale "
        "all their gradients, also copies that they do not count. Otherwise copies drift apart.",
        [
            g.patch(CLIPS, "if math.sqrt(total) > max_norm:"),
            g.patch(CLIPS, "own = math.sqrt(total)\n    if own > max_norm:", "/ norm)", "/ own)"),
            g.patch("None:  # copies", f"None and {IS_FIRST} and {NOT_TWICE}:  # copies"),
        ],
        hint=2,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=lambda s: g.Budget(
        collectives=6, payload_bytes=[8 * s.num_collectives(rank) for rank in range(s.n)]
    ),
    same=same,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.zero", "labkit.combined"),
    world_sizes=(4, 8, 1),
    shown="on every mesh each number of the gradient counts once, whether it is sharded, copied, "
    "averaged or tied; all ranks clip by the same norm and send 8 bytes at a time",
)
