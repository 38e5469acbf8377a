"""Grade sequence_parallel_norm: rows, gradients, bytes sent, and tensors of all rows in memory."""

import gc
import math
import time
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade import grader as g

RETURNED, HOOKS = "returned", "hooks on weight_D"
KEYS = [RETURNED, *(f"gradient of {x}" for x in ("z_ND", "r_nD", "weight_D")), HOOKS]
MOST = 2  # tensors of all rows alive at once
NUM_STEPS = 2  # with one weight: hooks that stay on it, and what overwrites its gradient, show


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Rows that n divides, rows that it does not, and fewer rows than ranks."""
    rows = n * draw.rng.randrange(3, 7), n * draw.rng.randrange(3, 6) + n - 1, n * 5 + 1, n - 1
    return [case(num_rows, n, draw) for num_rows in rows if num_rows]


def case(num_rows: int, n: int, draw: g.Draw) -> g.Case:
    """z, r, weight and the gradients of both results; some rows have a variance of about eps."""
    D, k, double = draw.rng.randrange(6, 12), -(-num_rows // n), torch.float64
    scale = 10 ** -torch.linspace(0, 2, num_rows, dtype=double)[:, None]
    z, dx = (draw.normal(num_rows, D, dtype=double) for _ in range(2))
    r, dr = (draw.same(num_rows, D, dtype=double) for _ in range(2))
    own_r, own_dr = (g.ByRank(x[i * k :][:k] for i in range(n)) for x in (scale * r, dr))
    weight, label = 1 + draw.same(D, dtype=double) / 4, f"{num_rows} row{'s' * (num_rows > 1)}"
    return g.Case(label, g.ByRank(scale * x for x in z), own_r, weight, own_dr, dx)


class LongTensors(TorchDispatchMode):
    """Counts tensors of all rows, made during the call, that are alive together; not `known`."""

    def __init__(self, watch: Any, z: Tensor, *known: Tensor) -> None:
        super().__init__()
        self.least_bytes = 0.75 * z.nbytes if watch.group.size > 1 and len(z) > 1 else math.inf
        self.watch, self.known, self.most, self.patience_s = watch, known, 0, 0.1

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
            self.patience_s -= 0.001
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
        if not g.close(returned, come_in, steps=math.inf):  # types, shapes and dtypes
            return {**dict.fromkeys(KEYS), RETURNED: returned}
    hooks = weight._backward_hooks or weight._post_accumulate_grad_hooks or ()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad.clone() for x in leaves]
    gradients[2] /= NUM_STEPS
    return dict(zip(KEYS, [returned, *gradients, len(hooks)]))


def one_step(watch: Any, leaves: list[Tensor], come_in: list[Tensor]) -> Any:
    """Forward, and backward from the gradients that come in; what forward returned, as values."""
    with LongTensors(watch, leaves[0]) as forward:
        returned = watch.function(*leaves, watch.group)
    if not g.close(returned, come_in, steps=math.inf):
        return returned
    if forward.count(0, returned[1]):
        gc.collect()  # what only cycles hold is not kept
    kept = forward.count(0, returned[1])
    with LongTensors(watch, leaves[0], returned[1]) as backward:
        if pairs := [(y, dy) for y, dy in zip(returned, come_in) if y.requires_grad]:
            torch.autograd.backward(*zip(*pairs))
    watch.note("too many", kept > 0 or max(forward.most, backward.most) > MOST)
    return tuple(each.detach().clone() for each in returned)


def right(z: g.ByRank, r: g.ByRank, weight: Tensor, dr: g.ByRank, dx: g.ByRank) -> g.ByRank:
    """One process with all rows."""
    h, weight = (sum(z) + torch.cat(r)).requires_grad_(), weight.clone().requires_grad_()
    x = layer_norm(h, weight.shape, weight, eps=1e-5)
    torch.autograd.backward([h, x], [torch.cat(dr), sum(dx)])
    cut = zip(*(each.split([len(own) for own in r]) for each in (h.detach(), h.grad)))
    return g.ByRank(
        dict(zip(KEYS, [(own_h, x.detach()), h.grad, of_r, weight.grad, 0])) for own_h, of_r in cut
    )


def budget(s: g.Observed) -> g.Budget:
    """Two collectives of all rows in each direction; in backward the weight's gradient too."""
    num_rows, D = s.xs[0].shape
    numel = 4 * (s.n - 1) * -(-num_rows // s.n) * D + 2 * (s.n - 1) / s.n * D
    return g.Budget(sent_bytes=NUM_STEPS * numel * 8)


def all_reduces_rows(s: g.Observed) -> bool:
    """Whether an all-reduce is of more than the weight's gradient."""
    return s.n > 1 and any(e.numel > len(s.args[2]) for e in s.operations(0, "all_reduce"))


SCATTER = "_ReduceScatter.apply(z_ND, len(r_nD), group)"
REDUCE, REDUCE_WEIGHT = "reduce_scatter(pad(x_ND, padding)", "all_reduce(gradient_D"
OF_GATHER = "return _reduced(gradient_ND, ctx.num_rows, ctx.group)"
NORM, RETURN = "layer_norm(residual_nD, weight_D.shape, weight_D, eps=1e-5)", "return residual_nD"
MISTAKES = [
    g.Mistake(
        "does not sum the ranks' parts",
        "Each rank takes its rows of its own z_ND. A row of the layer's output is the sum of that "
        "row of all ranks: reduce_scatter gives it.",
        g.patch(SCATTER, "z_ND.split(-(-len(z_ND) // group.size))[group.rank]"),
    ),
    g.Mistake(
        "averages instead of summing",
        "The z_ND of the ranks are parts of a sum, and so are their gradients of x_ND and of "
        'weight_D. Nothing is divided by n: op="sum".',
        [
            g.patch(REDUCE, f'{REDUCE}, op="mean"'),
            g.patch(REDUCE_WEIGHT, f'{REDUCE_WEIGHT}, op="mean"'),
        ],
        hint=3,
    ),
    g.Mistake(
        "adds the residual on every rank",
        "If every rank adds the residual to its part before the sum, the sum has it n times. Add "
        "this rank's rows of it after the reduce_scatter.",
        g.patch(
            "r_nD + _ReduceScatter.apply(z_ND",
            "_ReduceScatter.apply(z_ND + _AllGather.apply(r_nD, len(z_ND), group)",
        ),
        hint=3,
    ),
    g.Mistake(
        "computes another residual, or another norm",
        "The new residual is the layer's output plus the residual. It is returned as it is. x_ND "
        "is LayerNorm of it: minus the mean, divided by sqrt(var + 1e-5), times the weight. The "
        "variance is the mean square over D, not over D - 1.",
        [
            g.patch(NORM, NORM.replace("residual_nD", "residual_nD - r_nD")),
            g.patch(  # RMSNorm
                NORM, "residual_nD / (residual_nD.square().mean(1, True) + 1e-5).sqrt() * weight_D"
            ),
            g.patch(  # with the variance of a sample
                NORM,
                "(residual_nD - residual_nD.mean(1, True)) * weight_D"
                " / (residual_nD.var(1, keepdim=True) + 1e-5).sqrt()",
            ),
            g.patch(RETURN, "return normed_nD"),
        ],
    ),
    g.Mistake(
        "loses a part of the gradient",
        "residual_nD has a gradient of its own, and another one through the norm and x_ND. "
        "Autograd does not record the group's collectives: a torch.autograd.Function must.",
        [
            g.patch(SCATTER, SCATTER.replace("z_ND", "z_ND.detach()")),
            g.patch(NORM, NORM.replace("residual_nD", "residual_nD.detach()")),
        ],
        hint=3,
    ),
    g.Mistake(
        "a backward keeps to this rank's rows",
        "All ranks use the rows that a rank gathers, so the gradients of x_ND are summed: the "
        "backward of the all_gather is a reduce_scatter. A rank's z_ND is in the sums of all rows, "
        "so it gets all rows' gradients: the backward of the reduce_scatter is an all_gather.",
        [
            g.patch(
                OF_GATHER,
                "k = -(-len(gradient_ND) // ctx.group.size)\n"
                "        return gradient_ND[ctx.group.rank * k :][: ctx.num_rows]",
            ),
            g.patch(
                "return _gathered(gradient_nD, ctx.num_rows, ctx.group)",
                "before = ctx.group.rank * -(-ctx.num_rows // ctx.group.size)\n"
                "        after = ctx.num_rows - before - len(gradient_nD)\n"
                "        return pad(gradient_nD, (0, 0, before, after))",
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "does not sum the weight's gradient",
        "Each rank has the gradient of its own rows only. After one optimizer step the weights "
        "would differ between the ranks: all-reduce the gradient.",
        g.patch("ctx.group.all_reduce(gradient_D)", "gradient_D"),
        hint=2,
    ),
    g.Mistake(
        "crashes where n does not divide the rows",
        "Collectives take blocks of one size. Pad the rows until n divides them, also on a rank "
        "with fewer rows or none, and cut the padding off afterwards.",
        g.patch("pad(x_ND, padding)", "x_ND"),
        crashed=lambda s: len(s.xs[0]) % s.n > 0,
        hint=3,
    ),
    g.Mistake(
        "all-reduces all rows",
        "An all-reduce is a reduce_scatter followed by an all_gather. A rank needs the sum of its "
        "own rows only: the first half. The second half follows the norm.",
        g.patch(
            "group.reduce_scatter(pad(x_ND, padding))",
            "group.all_reduce(pad(x_ND, padding)).chunk(group.size)[group.rank].clone()",
        ),
        over_budget=all_reduces_rows,
    ),
    g.Mistake(
        "has too many tensors of all rows in memory",
        "None is kept for backward, besides z_ND and x_ND, and two at once are enough: the one "
        "that is sent and the one that arrives. Normalize this rank's rows, then gather. A "
        "variable keeps its tensor until the function returns, and a slice keeps the whole tensor.",
        g.patch(
            "= len(x_nD), group",
            "= len(x_nD), group\n        ctx.kept = x_nD.new_zeros(num_rows, x_nD.shape[1])",
        ),
        # An all-reduce may have one more for a moment.
        over_budget=lambda s: (
            not all_reduces_rows(s) and any(e.value for seen in s.ranks for e in seen.notes)
        ),
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    same=g.within(500),
    budget=budget,
    mistakes=MISTAKES,
    allowed=("reduce_scatter", "all_gather", "all_reduce"),
    closed=("labkit.tensor_parallel", "labkit.collectives"),
    watch_memory=True,
    world_sizes=(3, 2, 1),
    shown="rows and all gradients are those of one process, for any number of rows; forward and "
    "backward each send what one all-reduce does, and no tensor of all rows is kept in between",
)
