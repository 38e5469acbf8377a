"""Grade sequence_parallel_norm: rows, gradients, bytes sent, and tensors of all rows in memory."""

import gc
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import layer_norm
from torch.utils._python_dispatch import TorchDispatchMode

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
    within,
)

Tensor = torch.Tensor
OF_Z, OF_R, OF_WEIGHT = "gradient of z_ND", "gradient of r_nD", "gradient of weight_D"
MOST = 2  # tensors of all rows alive at once
NUM_STEPS = 2  # with one weight: hooks that stay on it, and what overwrites its gradient, show


def cases(n: int, draw: Draw) -> list[Case]:
    """Rows that n divides, rows that it does not, and fewer rows than ranks."""
    rows = n * draw.rng.randrange(3, 7), n * draw.rng.randrange(3, 6) + n - 1, n * 5 + 1, n - 1
    return [case(num_rows, n, draw) for num_rows in rows if num_rows]


def case(num_rows: int, n: int, draw: Draw) -> Case:
    """z, r, weight and the gradients of both results; some rows have a variance of about eps."""
    D, k = draw.rng.randrange(6, 12), -(-num_rows // n)
    scale = 10 ** -torch.linspace(0, 2, num_rows, dtype=torch.float64)[:, None]
    z, r, dr, dx = (draw.normal(num_rows, D, dtype=torch.float64) for _ in range(4))
    weight = 1 + draw.same(D, dtype=torch.float64) / 4
    own = ByRank((scale * r[0])[rank * k :][:k] for rank in range(n))
    own_dr = ByRank(dr[0][rank * k :][:k] for rank in range(n))
    return Case(
        f"{num_rows} row{'s' * (num_rows > 1)}",
        ByRank(scale * each for each in z),
        own,
        weight,
        own_dr,
        dx,
    )


class LongTensors(TorchDispatchMode):
    """Counts tensors of all rows, made during the call, that are alive together; not `known`."""

    patience_s = 0.5  # of all cases together

    def __init__(self, watch: Any, z: Tensor, *known: Tensor) -> None:
        super().__init__()
        is_told_apart = -(-len(z) // watch.group.size) <= 0.6 * len(z)
        self.least_bytes = 0.75 * z.nbytes if is_told_apart else float("inf")
        self.watch, self.known, self.most = watch, known, 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in watched.Watch

    def count(self, most: int, *known: Tensor) -> int:
        """How many there are. Threads of the backend may hold one for a moment: where there are
        more than `most`, wait for these."""
        left_out = {x.untyped_storage()._cdata for x in known}
        while True:
            alive = [x for x in self.watch.live_storages() if x._cdata not in left_out]
            found = sum(x.nbytes() >= self.least_bytes for x in alive)
            if found <= most or self.patience_s < 0:
                return found
            del alive
            LongTensors.patience_s -= 0.001
            time.sleep(0.001)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count after each operator."""
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, self.count(MOST, *self.known))
        return result


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Forward and backward, twice with the same weight."""
    z, r, weight, *come_in = args
    leaves = [leaf.requires_grad_() for leaf in (z, r, weight)]
    for _ in range(NUM_STEPS):
        z.grad = r.grad = returned = None
        returned = one_step(watch, leaves, come_in)
    if not has_form(returned, come_in):
        return {"returned": returned, OF_Z: None, OF_R: None, OF_WEIGHT: None}
    hooks = weight._backward_hooks or weight._post_accumulate_grad_hooks or ()
    watch.note("hooks", len(hooks))
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad.clone() for x in leaves]
    gradients[2] /= NUM_STEPS
    return {"returned": returned, **dict(zip((OF_Z, OF_R, OF_WEIGHT), gradients))}


def one_step(watch: Any, leaves: list[Tensor], come_in: list[Tensor]) -> Any:
    """Forward, and backward from the gradients that come in; what forward returned, as values."""
    with LongTensors(watch, leaves[0]) as forward:
        returned = watch.function(*leaves, *watch.groups)
    if not has_form(returned, come_in):
        return returned
    if forward.count(0, returned[1]):
        gc.collect()  # what only cycles hold is not kept
    watch.note("kept", forward.count(0, returned[1]))
    loss = torch.zeros(())
    for y, dy in zip(returned, come_in):
        if y.requires_grad:
            outside = y.view_as(y)  # so that the hook leaves y's other uses alone
            outside.register_hook(lambda gradient, dy=dy: dy)
            loss = loss + outside.sum()
    with LongTensors(watch, leaves[0], returned[1]) as backward:
        if loss.requires_grad:
            loss.backward()
    watch.note("most", max(forward.most, backward.most))
    return tuple(each.detach().clone() for each in returned)


def has_form(returned: Any, like: list[Tensor]) -> bool:
    """Whether there are two tensors of the right shapes."""
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    return is_pair and all(
        isinstance(one, Tensor) and one.shape == other.shape for one, other in zip(returned, like)
    )


def right(z: ByRank, r: ByRank, weight: Tensor, dr: ByRank, dx: ByRank) -> ByRank:
    """One process with all rows."""
    w = whole(z, r, weight, dr, dx)
    x = norm(w.h, weight)
    through, of_weight = back(w, w.dx)
    cut = zip(w.own(w.h), w.own(w.dr + through))
    of_z = {OF_Z: w.dr + through, OF_WEIGHT: of_weight}
    return ByRank({"returned": (h, x), **of_z, OF_R: of_r} for h, of_r in cut)


def whole(z: ByRank, r: ByRank, weight: Tensor, dr: ByRank, dx: ByRank) -> SimpleNamespace:
    """All rows: z summed, residual r, new residual h; `own` cuts rows by rank."""
    sizes = [len(each) for each in r]
    w = SimpleNamespace(zs=z, z=sum(z), r=torch.cat(r), weight=weight, n=len(z))
    w.h, w.dr, w.dx, w.dxs = w.z + w.r, torch.cat(dr), sum(dx), dx
    w.own = lambda x: list(x.split(sizes))
    return w


def norm(h: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """LayerNorm."""
    return layer_norm(h, h.shape[1:], weight, eps=eps)


def back(w: SimpleNamespace, dx: Tensor) -> tuple[Tensor, ...]:
    """Gradients of h and of the weight, from that of x."""
    h, weight = w.h.clone().requires_grad_(), w.weight.clone().requires_grad_()
    return torch.autograd.grad((norm(h, weight) * dx).sum(), (h, weight))


def gives(*ideas: tuple[Any, Callable[[SimpleNamespace], list[list[Tensor]]]]) -> Any:
    """Whether a part is wrong, and what one of its ideas says, by rank.

    ideas: pairs of a part, 0 for residual_nD, 1 for x_ND or the name of a gradient, and a function.
    """

    def is_close(ys: list[Any], part: Any, values: list[Tensor]) -> bool:
        got = [y["returned"][part] if isinstance(part, int) else y[part] for y in ys]
        return all(close(one, other, steps=500) for one, other in zip(got, values))

    def seen(s: Observed) -> bool:
        w = whole(*s.args)
        for part, idea in ideas:
            right = [r["returned"][part] if isinstance(part, int) else r[part] for r in s.right]
            if is_close(s.ys, part, right):
                continue
            if any(is_close(s.ys, part, values) for values in idea(w)):
                return True
        return False

    return seen


def other_norms(w: SimpleNamespace) -> list[list[Tensor]]:
    """x of other norms: eps, variance, mean or weight differ."""
    centred, var = w.h - w.h.mean(1, keepdim=True), w.h.var(1, keepdim=True, correction=0)
    rms = w.h / (w.h.square().mean(1, keepdim=True) + 1e-5).sqrt() * w.weight
    unbiased = centred / (w.h.var(1, keepdim=True) + 1e-5).sqrt() * w.weight
    other_eps = [norm(w.h, w.weight, eps) for eps in (0, 1e-3, 1e-6, 1e-8, 1e-12)]
    outside = centred / (var.sqrt() + 1e-5) * w.weight
    return [[x] * w.n for x in (norm(w.h), rms, unbiased, outside, *other_eps)]


def alone(w: SimpleNamespace, x: Tensor) -> list[Tensor]:
    """By rank, its own rows and zeros elsewhere."""
    parts = w.own(x)
    return [
        torch.cat([part if i == rank else torch.zeros_like(part) for i, part in enumerate(parts)])
        for rank in range(w.n)
    ]


def weights_alone(w: SimpleNamespace) -> list[list[Tensor]]:
    """The weight's gradient of a rank's own rows, or of its own part of the gradient of x."""
    by_rows = [back(w, dx)[1] for dx in alone(w, w.dx)]
    return [by_rows, [back(w, dx)[1] for dx in w.dxs]]


def noted(s: Observed, what: str) -> int:
    """The largest number noted on any rank."""
    return max(e.value for seen in s.ranks for e in seen.notes if e.what == what)


def all_reduces_rows(s: Observed) -> bool:
    """Whether an all-reduce is of more than the weight's gradient."""
    return any(e.numel > len(s.args[2]) for e in s.operations(0, "all_reduce"))


def budget(s: Observed) -> Budget:
    """Two collectives of all rows in each direction; in backward the weight's gradient too."""
    num_rows, D = s.xs[0].shape
    numel = 4 * (s.n - 1) * -(-num_rows // s.n) * D + 2 * (s.n - 1) / s.n * D
    return Budget(sent_bytes=NUM_STEPS * numel * 8)


SCATTER = "_ReduceScatter.apply(z_ND, len(r_nD), group)"
GATHERED = "_AllGather.apply(residual_nD, len(z_ND), group)"
HOOKED = "weight_D.register_hook(group.all_reduce) and weight_D"

MISTAKES = [
    Mistake(
        "does not sum the ranks' parts",
        "Each rank takes its rows of its own z_ND. A row of the layer's output is the sum of that "
        "row of all ranks: reduce_scatter gives it.",
        seen=gives((0, lambda w: [[w.own(z + w.r)[i] for i, z in enumerate(w.zs)]])),
        made_by=patch(SCATTER, "z_ND.split(-(-len(z_ND) // group.size))[group.rank]"),
    ),
    Mistake(
        "averages instead of summing",
        "The z_ND of the ranks are parts of a sum, and so are their gradients of x_ND and of "
        'weight_D. Nothing is divided by n: op="sum".',
        hint=3,
        seen=gives(
            (0, lambda w: [w.own(w.z / w.n + w.r), w.own(w.h / w.n)]),
            (OF_R, lambda w: [w.own(w.dr + back(w, w.dx / w.n)[0])]),
            (OF_Z, lambda w: [[(w.dr + back(w, w.dx)[0]) / w.n] * w.n]),
            (OF_WEIGHT, lambda w: [[back(w, w.dx)[1] / w.n] * w.n]),
        ),
        made_by=patch("group.all_reduce(gradient_D)", 'group.all_reduce(gradient_D, op="mean")'),
    ),
    Mistake(
        "adds the residual on every rank",
        "If every rank adds the residual to its part before the sum, the sum has it n times. Add "
        "this rank's rows of it after the reduce_scatter.",
        hint=3,
        seen=gives((0, lambda w: [w.own(w.z + w.n * w.r)])),
        made_by=patch(
            "r_nD + _ReduceScatter.apply(z_ND",
            "_ReduceScatter.apply(z_ND + _AllGather.apply(r_nD, len(z_ND), group)",
        ),
    ),
    Mistake(
        "normalizes or returns the wrong tensor",
        "The new residual is the layer's output plus the residual. It is returned as it is, and "
        "x_ND is the norm of it.",
        seen=gives(
            (0, lambda w: [w.own(norm(w.h, w.weight)), w.own(norm(w.z, w.weight) + w.r)]),
            (0, lambda w: [w.own(w.z), w.own(w.r)]),
            (1, lambda w: [[w.h] * w.n, [norm(w.z, w.weight)] * w.n]),
        ),
        made_by=patch("return residual_nD, ", "return normed_nD, "),
    ),
    Mistake(
        "computes another norm",
        "LayerNorm subtracts the mean, divides by sqrt(var + 1e-5) and multiplies by the weight. "
        "The variance is the mean square over D, not over D - 1.",
        seen=gives((1, other_norms)),
        made_by=patch("eps=1e-5", "eps=1e-6"),
    ),
    Mistake(
        "loses a part of the gradient",
        "residual_nD has a gradient of its own, and another one through the norm and x_ND. "
        "Autograd does not record the group's collectives: a torch.autograd.Function must.",
        hint=3,
        seen=gives(
            (OF_R, lambda w: [w.own(w.dr), w.own(back(w, w.dx)[0]), w.own(0 * w.dr)]),
            (OF_Z, lambda w: [[0 * w.dr] * w.n]),
        ),
        made_by=patch(SCATTER, SCATTER.replace("z_ND", "z_ND.detach()")),
    ),
    Mistake(
        "the backward of the all-gather is a slice",
        "Each rank takes its rows of its own gradient of x_ND. All ranks use these rows, and "
        "their gradients must be summed: the backward is a reduce_scatter.",
        hint=2,
        seen=gives((OF_R, lambda w: [[w.own(w.dr + back(w, w.dxs[i])[0])[i] for i in range(w.n)]])),
        made_by=patch(
            "return _reduced(gradient_ND, ctx.num_rows, ctx.group), None, None",
            "k = -(-len(gradient_ND) // ctx.group.size)\n"
            "        return gradient_ND[ctx.group.rank * k :][: ctx.num_rows], None, None",
        ),
    ),
    Mistake(
        "the backward of the reduce-scatter keeps to its rows",
        "The gradient of z_ND is zero in the rows of other ranks here. A rank's z_ND is in the "
        "sums of all rows: the backward is an all_gather.",
        hint=2,
        seen=gives((OF_Z, lambda w: [alone(w, w.dr + back(w, w.dx)[0])])),
        made_by=patch(
            "return _gathered(gradient_nD, ctx.num_rows, ctx.group), None, None",
            "before = ctx.group.rank * -(-ctx.num_rows // ctx.group.size)\n"
            "        after = ctx.num_rows - before - len(gradient_nD)\n"
            "        return pad(gradient_nD, (0, 0, before, after)), None, None",
        ),
    ),
    Mistake(
        "does not sum the weight's gradient",
        "Each rank has the gradient of its own rows only. After one optimizer step the weights "
        "would differ between the ranks: all-reduce the gradient.",
        hint=2,
        seen=gives((OF_WEIGHT, weights_alone)),
        made_by=patch("ctx.group.all_reduce(gradient_D), None", "gradient_D, None"),
    ),
    Mistake(
        "leaves a hook on the weight",
        "After the call the hook is still there. The next step adds another one, and the gradient "
        "is reduced twice. Communicate in the backward of a Function instead.",
        hint=3,
        seen=lambda s: noted(s, "hooks") > 0,
        made_by=patch("_OfAllRanks.apply(weight_D, group)", HOOKED),
    ),
    Mistake(
        "crashes where n does not divide the rows",
        "Collectives take blocks of one size. Pad the rows until n divides them, also on a rank "
        "with fewer rows or none, and cut the padding off afterwards.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: len(s.xs[0]) % s.n > 0,
        made_by=patch("pad(x_ND, padding)", "x_ND"),
    ),
    Mistake(
        "all-reduces all rows",
        "An all-reduce is a reduce_scatter followed by an all_gather. A rank needs the sum of its "
        "own rows only: the first half. The second half follows the norm.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: s.n > 1 and all_reduces_rows(s),
        made_by=patch(
            "group.reduce_scatter(pad(x_ND, padding))",
            "group.all_reduce(pad(x_ND, padding)).chunk(group.size)[group.rank].clone()",
        ),
    ),
    Mistake(
        "keeps all rows for backward",
        "Besides z_ND and x_ND a tensor of all rows is alive after forward. Normalize this rank's "
        "rows, then gather. A slice keeps all of the tensor that it is a slice of.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: noted(s, "kept") > 0,
        made_by=patch(
            *("layer_norm(residual_nD,", "layer_norm(residual_ND,"),
            *("    normed_nD =", f"    residual_ND = {GATHERED}\n    normed_ND ="),
            *(GATHERED.replace("residual", "normed"), "normed_ND"),
        ),
    ),
    Mistake(
        "has too many tensors of all rows at once",
        "Two are enough: the one that is sent and the one that arrives. A variable keeps its "
        "tensor until the function returns.",
        outcome=Outcome.OVER_BUDGET,
        seen=lambda s: (
            noted(s, "kept") == 0
            and noted(s, "most") > MOST
            and not all_reduces_rows(s)  # of which one more may be alive for a moment
        ),
        made_by=patch(
            "return group.reduce_scatter(pad(x_ND, padding))",
            "padded, doubled, halved = pad(x_ND, padding), 2 * x_ND, x_ND / 2\n"
            "    return group.reduce_scatter(padded)",
        ),
    ),
]

GRADER = OnRanks(
    name="sequence_parallel_norm",
    cases=cases,
    right=right,
    call=call,
    num_arguments=4,
    same=within(500),
    budget=budget,
    mistakes=MISTAKES,
    allowed=("reduce_scatter", "all_gather", "all_reduce"),
    closed=("labkit.tensor_parallel", "labkit.collectives"),
    watch_memory=True,
    world_sizes=(3, 2, 1),
    shown="rows and all gradients are those of one process, for any number of rows; forward and "
    "backward each send what one all-reduce does, and no tensor of all rows is kept in between",
)
