"""Grade global_grad_norm: each number counted once, gradients scaled in place, 8 bytes sent."""

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labkit.grade.grader import (
    Budget,
    ByRank,
    Case,
    Draw,
    Mistake,
    Observed,
    OnRanks,
    Outcome,
    patch,
)

AXES = ("dp", "pp", "tp")
RTOL = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
NORM_RTOL = 1e-5


def cases(n: int, draw: Draw) -> list[Case]:
    """Meshes of every kind, in every order; gradients that are absent, empty, huge or tiny."""
    # With two orders of the axes, no fixed one is right. Each mesh takes time to make.
    first, second = draw.rng.sample([*itertools.permutations(AXES)], 2)
    case = functools.partial(drawn, axes=first)
    if n == 1:
        return [case(draw, 1, 1, 1, "averaged"), case(draw, 1, 1, 1, "not clipped", share=1.5)]
    if n == 8:
        return [
            case(draw, 2, 2, 2, "averaged"),
            case(draw, 2, 2, 2, "ZeRO", is_zero=True, axes=second),
        ]
    return [
        case(draw, 1, 2, 2, "averaged"),
        case(draw, 2, 1, 2, "averaged, not clipped", share=draw.rng.uniform(1.2, 4)),
        case(draw, 2, 1, 2, "ZeRO", is_zero=True),
        case(draw, 2, 2, 1, "ZeRO", is_zero=True),
        case(draw, 1, 2, 2, "gradients absent", absent=0.4),
        case(draw, 1, 4, 1, "a stage without parameters", empty=draw.rng.choice((1, 2))),
        case(draw, 1, 2, 2, "gradients of 1e25", scale=1e25),
        case(draw, 2, 1, 2, "gradients of 1e-30", scale=1e-30),
        case(draw, 1, 2, 2, "bfloat16", dtype=torch.bfloat16),
        case(draw, 1, 2, 2, "gradients of 0", scale=0.0),
    ]


def drawn(
    draw: Draw,
    dp: int,
    pp: int,
    tp: int,
    what: str,
    *,
    axes: Sequence[str],
    is_zero: bool = False,
    share: float = 0.1,
    scale: float = 1.0,
    absent: float = 0.0,
    empty: int = -1,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """axes: the slowest first. is_zero: gradients are sharded over dp. share: of the norm, for
    max_norm. empty: a stage."""
    sizes = {axis: {"dp": dp, "pp": pp, "tp": tp}[axis] for axis in axes}
    made: dict[tuple, Tensor | None] = {}

    def one(place, key: tuple, over: tuple[str, ...], *shape: int, is_tied: bool = False):
        if is_zero:
            key = (*key, place["dp"])
        if key not in made:
            x = (draw.same(*shape, dtype=torch.float64) * scale).to(dtype)
            made[key] = None if draw.rng.random() < absent else x
        over = over if is_zero else (*over, "dp")
        return {"grad": made[key], "key": key, "copied_over": over, "is_tied": is_tied}

    def stage(place):
        p, t = place["pp"], place["tp"]
        if p == empty:
            return
        for layer in range(2):
            yield one(place, ("matrix", layer, p, t), (), draw.rng.randrange(1, 5), 7)
            yield one(place, ("bias", layer, p, t), (), 4)
            yield one(place, ("norm", layer, p), ("tp",), 6)
        yield one(place, ("gate", p), ("tp",))
        yield one(place, ("no rows", p, t), (), 0, 5)
        if p in (0, pp - 1):
            yield one(place, ("embedding", t), (), 3, 6, is_tied=True)

    held = ByRank(list(stage(where)) for where in places(sizes))
    max_norm = share * norm_of(held) or 1.0
    label = " x ".join(f"{axis} {size}" for axis, size in sizes.items())
    return Case(f"{label}, {what}", sizes, held, max_norm)


def places(sizes: dict[str, int]) -> list[dict[str, int]]:
    """By rank, its coordinates; the last axis varies fastest."""
    every = itertools.product(*map(range, sizes.values()))
    return [dict(zip(sizes, where, strict=True)) for where in every]


@functools.lru_cache(4096)  # predicates ask for the same ones again and again
def squares(gradient: Tensor | None) -> float:
    """The sum of squares."""
    return 0.0 if gradient is None else float(gradient.double().square().sum())


def norm_of(held) -> float:
    """The norm of the whole model's gradient: what is the same has the same key."""
    gradients = {each["key"]: each["grad"] for its in held for each in its}
    return math.sqrt(sum(map(squares, gradients.values())))


def call(watch, args) -> dict[str, object] | None:
    """The norm and the gradients of a rank, and how many of them are other tensors than before."""
    sizes, held, max_norm = args
    parameters = []
    for each in held:
        grad = None if each["grad"] is None else each["grad"].clone()
        parameter = nn.Parameter(torch.zeros(3) if grad is None else torch.zeros_like(grad))
        parameter.grad, parameter.is_tied = grad, each["is_tied"]
        parameter.copied_over = tuple(each["copied_over"])
        parameters.append(parameter)
    before = [(each.grad, each.grad is None or each.grad.data_ptr()) for each in parameters]
    norm = watch.function(list(parameters), max_norm, watch.mesh(**sizes))
    if norm is None:
        return None
    after = [(each.grad, each.grad is None or each.grad.data_ptr()) for each in parameters]
    is_other = [a is not b or p != q for (a, p), (b, q) in zip(before, after, strict=True)]
    return {
        "norm": norm,
        "gradients": [each.grad for each in parameters],
        "other tensors in .grad": sum(is_other),
    }


def right(sizes, held: ByRank, max_norm: float) -> ByRank:
    """The norm of all different gradients."""
    norm = norm_of(held)
    factor = max_norm / norm if norm > max_norm else 1.0
    return ByRank(
        {
            "norm": norm,
            "gradients": [scaled(each["grad"], factor) for each in its],
            "other tensors in .grad": 0,
        }
        for its in held
    )


def scaled(gradient: Tensor | None, factor: float) -> Tensor | None:
    """A gradient times a factor."""
    return None if gradient is None else (gradient.double() * factor).to(gradient.dtype)


def same(got, right, case: Case | None = None) -> bool:
    """Whether norm and gradients are right but for rounding in the gradients' dtype."""
    return (
        got is not None
        and is_close(got["norm"], right["norm"])
        and are_close(got["gradients"], right["gradients"])
        and got["other tensors in .grad"] == 0
    )


def is_close(norm: float, right: float) -> bool:
    """Of two norms."""
    return type(norm) in (int, float) and abs(norm - right) <= NORM_RTOL * right


def are_close(gradients, right) -> bool:
    """Of two lists of gradients."""
    return all(
        (a is None) == (b is None)
        and (a is None or torch.allclose(a.double(), b.double(), rtol=RTOL[b.dtype], atol=1e-38))
        for a, b in zip(gradients, right, strict=True)
    )


def counts(sizes, where, each) -> bool:
    """Whether a rank at these coordinates is the first with these numbers."""
    is_second_copy = each["is_tied"] and 0 < where["pp"] == sizes["pp"] - 1
    return not is_second_copy and all(where[axis] == 0 for axis in each["copied_over"])


def everything(sizes, where, each) -> bool:
    """Every copy counts."""
    return True


def but(axis: str = "", **changes):
    """`counts`, without an axis of copied_over, or with another is_tied."""
    return lambda sizes, where, each: counts(
        sizes,
        where,
        each | {"copied_over": [a for a in each["copied_over"] if a != axis]} | changes,
    )


def own_norms(s: Observed, does_count=counts, order=()) -> list[float]:
    """By rank, the norm of what it counts. order: of the axes, if not the right one."""
    sizes = {axis: s.args[0][axis] for axis in order or s.args[0]}
    return [
        math.sqrt(sum(squares(x["grad"]) for x in its if does_count(sizes, where, x)))
        for where, its in zip(places(sizes), s.args[1], strict=True)
    ]


def total(s: Observed, does_count=counts, order=()) -> float:
    """The norm over all ranks."""
    return math.hypot(*own_norms(s, does_count, order))


def over(s: Observed, axes) -> list[float]:
    """By rank, the norm over its group along these axes; nothing for a group of one rank."""
    if all(s.args[0][axis] == 1 for axis in axes):
        return [0.0] * s.n
    fixed = [[at[axis] for axis in AXES if axis not in axes] for at in places(s.args[0])]
    own = own_norms(s)
    return [math.hypot(*(x for x, f in zip(own, fixed, strict=True) if f == g)) for g in fixed]


def of_norm(name: str, why: str, norms, *texts: str, hint: int = 2) -> Mistake:
    """A mistake by which ranks return one of norms(s): one for all ranks, or a list by rank."""

    def seen(s: Observed) -> bool:
        got = [y["norm"] for y in s.ys]
        by_rank = [each if isinstance(each, list) else [each] * s.n for each in norms(s)]
        return not all(map(is_close, got, [total(s)] * s.n)) and any(
            all(map(is_close, got, each)) for each in by_rank
        )

    return Mistake(name, why, seen, patch(*texts), hint)


def of_gradients(name: str, why: str, factors, *texts: str, hint: int = 3) -> Mistake:
    """A mistake by which gradients are scaled by one of factors(s), a factor(rank, gradient)."""

    def seen(s: Observed) -> bool:
        is_norm_right = all(is_close(y["norm"], total(s)) for y in s.ys)
        return (
            is_norm_right
            and not any(y["other tensors in .grad"] for y in s.ys)
            and any(
                all(
                    are_close(y["gradients"], [scaled(x["grad"], factor(rank, x)) for x in its])
                    for rank, (y, its) in enumerate(zip(s.ys, s.args[1], strict=True))
                )
                for factor in factors(s)
            )
        )

    return Mistake(name, why, seen, patch(*texts), hint)


def limited(s: Observed, norm: float) -> float:
    """The factor that belongs to a norm."""
    return min(1.0, s.args[2] / norm) if norm else 1.0


def is_small_dtype(s: Observed) -> bool:
    """Whether norms are inf, 0 or nan, or those of bfloat16 nearly right."""
    norm, is_bfloat16 = total(s), "bfloat16" in s.label
    return norm > 0 and all(
        not 0 < y["norm"] < math.inf
        or (is_bfloat16 and NORM_RTOL < abs(y["norm"] / norm - 1) < 0.05)
        for y in s.ys
    )


COUNTS = "counts = is_first and not (parameter.is_tied and is_second_copy)"
IS_FIRST = "all(getattr(mesh, axis).rank == 0 for axis in parameter.copied_over)"
REDUCED = "mesh.world.all_reduce(total)"
ROOT = f"math.sqrt(float({REDUCED}))"

MISTAKES = [
    of_norm(
        "counts what tp ranks share on each of them",
        "LayerNorms are not sharded: every tp rank has the same gradient of them, and the sum over "
        "tp has it tp times. One rank of the group counts it.",
        lambda s: [total(s, but("tp"))],
        IS_FIRST,
        IS_FIRST.replace("copied_over", 'copied_over if axis != "tp"'),
    ),
    of_norm(
        "counts averaged gradients on each dp rank",
        "After data parallelism's all-reduce every dp rank has the same mean, and the sum over dp "
        "has it dp times. One rank of the group counts it.",
        lambda s: [total(s, but("dp"))],
        IS_FIRST,
        IS_FIRST.replace("copied_over", 'copied_over if axis != "dp"'),
    ),
    of_norm(
        "counts the tied embedding on both stages",
        "The first and the last stage have the same gradient of it, and it is one gradient of the "
        "model. One of the two stages leaves it out.",
        lambda s: [total(s, but(is_tied=False))],
        COUNTS,
        "counts = is_first",
    ),
    of_norm(
        "counts every copy",
        "The norm belongs to the model, not to all memory. Of the ranks with the same gradient one "
        "counts it, and of the two stages with the embedding one.",
        lambda s: [total(s, everything)],
        COUNTS,
        "counts = True",
    ),
    of_norm(
        "leaves out the tied embedding",
        "One of the stages counts it. With pp = 1 the only stage is both the first and the last.",
        lambda s: [total(s, lambda *at: counts(*at) and not at[2]["is_tied"])],
        " and mesh.pp.size > 1",
        "",
        hint=3,
    ),
    of_norm(
        "leaves out shards",
        "Where a gradient is sharded, each rank has other numbers and counts its own. Only copies "
        "are left to the first rank of a group.",
        lambda s: [
            total(s, lambda *at, axes=axes: counts(*at) and not any(at[1][a] for a in axes))
            for axes in (("tp",), ("dp",), ("dp", "tp"))
        ],
        COUNTS,
        f"{COUNTS} and mesh.tp.rank == 0 and mesh.dp.rank == 0",
    ),
    of_norm(
        "assumes an order of the axes",
        "Coordinates were computed from the rank's number, as if the axes had a fixed order. Here "
        "they come in any order: ask the groups, for example mesh.tp.rank.",
        lambda s: [total(s, order=order) for order in itertools.permutations(AXES)],
        f"is_first = {IS_FIRST}",
        "rank, tp, pp = mesh.world.rank, mesh.tp.size, mesh.pp.size\n"
        '        place = {"dp": rank // (tp * pp), "pp": rank // tp % pp, "tp": rank % tp}\n'
        '        is_second_copy = place["pp"] == pp - 1 and pp > 1\n'
        "        is_first = all(place[axis] == 0 for axis in parameter.copied_over)",
    ),
    of_norm(
        "returns the norm of one rank's gradients",
        "Squares are added up over all ranks, and then comes the root. Ranks that clip by "
        "different norms turn one model into several.",
        lambda s: [own_norms(s), own_norms(s, everything)],
        REDUCED,
        "total",
        hint=1,
    ),
    of_norm(
        "does not add up over all axes",
        "Ranks along each axis may have other parameters or other shards: over tp, over pp, and "
        "over dp where ZeRO shards gradients. Their squares belong to the sum.",
        lambda s: [over(s, axes) for k in (1, 2) for axes in itertools.combinations(AXES, k)],
        REDUCED,
        "mesh.pp.all_reduce(mesh.tp.all_reduce(total))",
    ),
    of_norm(
        "adds up norms instead of squares",
        "Norms do not add. The norm of two parts is the root of the sum of their squares. Take the "
        "root once, at the end.",
        lambda s: [sum(own_norms(s)), max(own_norms(s))],
        ROOT,
        "float(mesh.world.all_reduce(total.sqrt()))",
        hint=1,
    ),
    of_norm(
        "returns the norm after clipping",
        "The norm before clipping is returned: a spike in it shows that training is unstable.",
        lambda s: [min(total(s), s.args[2])],
        "return norm",
        "return min(norm, max_norm)",
        hint=1,
    ),
    Mistake(
        "squares in a small dtype",
        "In float32 1e25 squared is inf and 1e-30 squared is 0, and bfloat16 drops small squares "
        "beside a large sum. Convert to float64 before you square.",
        is_small_dtype,
        patch("parameter.grad.double()", "parameter.grad"),
        hint=3,
    ),
    of_gradients(
        "does not clip",
        "The norm is right, and the gradients are what they were. Multiply each of them by "
        "max_norm / norm, in place.",
        lambda s: [lambda rank, x: 1.0],
        "parameter.grad.mul_(",
        "parameter.grad.mul(",
        hint=1,
    ),
    of_gradients(
        "scales small gradients up",
        "max_norm is a limit. Where the norm is below it, nothing changes: the factor is min(1, "
        "max_norm / norm).",
        lambda s: [lambda rank, x: s.args[2] / total(s)],
        "if norm > max_norm:",
        "if norm > 0:",
    ),
    of_gradients(
        "clips by the norm of one rank's gradients",
        "The returned norm is right, and the factor comes from this rank's own gradients. Ranks "
        "then scale by different factors, and copies drift apart.",
        lambda s: [
            lambda rank, x, own=own: limited(s, own[rank])
            for own in (own_norms(s), own_norms(s, everything))
        ],
        "    if norm > max_norm:\n",
        "    own = math.sqrt(float(total))\n    if own > max_norm:\n",
        "max_norm / norm)",
        "max_norm / own)",
    ),
    of_gradients(
        "scales only what this rank counts",
        "A rank that leaves a copy out of the sum still has to clip it. Other ranks scale their "
        "copies, and the two drift apart.",
        lambda s: [
            lambda rank, x: (
                limited(s, total(s)) if counts(s.args[0], places(s.args[0])[rank], x) else 1.0
            )
        ],
        "    for parameter in parameters:\n        #",
        "    counted = []\n    for parameter in parameters:\n        #",
        "            total += ",
        "            counted.append(parameter)\n            total += ",
        "        for parameter in parameters:\n            if",
        "        for parameter in counted:\n            if",
        hint=2,
    ),
    of_gradients(
        "uses another factor",
        "The factor is max_norm / norm, once. An epsilon beside the norm changes small gradients, "
        "and 1 / norm scales to a norm of 1.",
        lambda s: [
            lambda rank, x, factor=factor: factor
            for factor in (
                limited(s, total(s) + 1e-6),
                limited(s, total(s)) ** 2,
                1 / total(s) if total(s) > s.args[2] else 1.0,
            )
        ],
        "max_norm / norm)",
        "max_norm / (norm + 1e-6))",
    ),
    Mistake(
        "puts other tensors into .grad",
        "Buckets and ZeRO's flat buffers hold views of the old tensors, which stay unclipped. "
        "Multiply in place with mul_, and leave None where it is.",
        lambda s: any(y["other tensors in .grad"] for y in s.ys),
        patch(
            "parameter.grad.mul_(max_norm / norm)",
            "parameter.grad = parameter.grad * (max_norm / norm)",
        ),
        hint=3,
    ),
    Mistake(
        "sends more than one number",
        "A rank's squares are one number when they are sent: 8 bytes in float64. Add them up on "
        "the rank first.",
        lambda s: any(e.nbytes > 8 for rank in range(s.n) for e in s.operations(rank)),
        patch(REDUCED, "mesh.world.all_reduce(total.expand(2).contiguous())[0]"),
        outcome=Outcome.OVER_BUDGET,
    ),
]

GRADER = OnRanks(
    name="global_grad_norm",
    cases=cases,
    right=right,
    call=call,
    budget=lambda s: Budget(collectives=6),
    same=same,
    mistakes=MISTAKES,
    allowed=("all_reduce",),
    closed=("labkit.zero", "labkit.combined"),
    world_sizes=(4, 8, 1),
    num_arguments=3,
    shown="on every mesh each number of the gradient counts once, whether it is sharded, copied, "
    "averaged or tied; all ranks clip by the same norm and send 8 bytes at a time",
)
