"""Grade sequence_parallel_norm: rows, gradients, bytes sent, and tensors of all rows in memory."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade import grader as g

GRADIENTS = [f"gradient of {x}" for x in ("z_ND", "r_nD", "weight_D")]
KEYS = ["returned", *GRADIENTS, "hooks left on weight_D"]


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
        self.watch, self.least_bytes, self.most = watch, 0.75 * z.nbytes, 0
        self.known = {x.untyped_storage()._cdata for x in known}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in watched.Watch

    def count(self) -> int:
        """Return how many there are now."""
        alive = [x for x in self.watch.live_storages() if x._cdata not in self.known]
        return sum(x.nbytes() >= self.least_bytes for x in alive)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count after each operator."""
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, self.count())
        return result


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Forward, and backward from the gradients that come in."""
    z, r, weight, *come_in = args
    leaves = [leaf.requires_grad_() for leaf in (z, r, weight)]
    with LongTensors(watch, z) as forward:
        returned = watch.function(*leaves, watch.group)
    if not g.close(returned, come_in, steps=math.inf):  # types, shapes and dtypes
        return {**dict.fromkeys(KEYS), "returned": returned}
    values = [each.detach().clone() for each in returned]
    with LongTensors(watch, z, returned[1], values[1]) as backward:
        watch.note("kept", backward.count())
        if pairs := [(y, dy) for y, dy in zip(returned, come_in) if y.requires_grad]:
            torch.autograd.backward(*zip(*pairs))
    watch.note("alive", max(forward.most, backward.most))
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in leaves]
    hooks = weight._backward_hooks or weight._post_accumulate_grad_hooks or ()
    return dict(zip(KEYS, [values, *gradients, len(hooks)]))


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
    return g.Budget(sent_bytes=8 * numel)


def all_reduces_rows(s: g.Observed) -> bool:
    """Return whether an all-reduce covers more than the weight's gradient."""
    return s.n > 1 and any(e.numel > len(s.args[2]) for e in s.operations(0, "all_reduce"))


def has_many_rows(s: g.Observed) -> bool:
    """Return whether backward keeps a tensor of all rows, or more than two are alive at once."""
    most = {"kept": 0, "alive": 2}
    return s.n > 1 < len(s.xs[0]) and any(e.value > most[e.what] for x in s.ranks for e in x.notes)


SCATTER = "_ReduceScatter.apply(z_ND, len(r_nD), group)"
REDUCE = "reduce_scatter(pad(x_ND, padding)"
SUMMED = "ctx.group.all_reduce(gradient_D)"

MISTAKES = [
    g.Mistake(
        "does not sum the ranks' parts",
        "The z_ND of the ranks are parts of a sum, and so are their gradients of x_ND. A rank gets "
        'its rows of the sum from reduce_scatter, with op="sum": nothing is divided by n.',
        [
            g.patch(SCATTER, "z_ND.split(-(-len(z_ND) // group.size))[group.rank]"),
            g.patch(REDUCE, f'{REDUCE}, op="mean"'),
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
        "loses a part of the gradient",
        "residual_nD has a gradient of its own, and another one through the norm and x_ND. "
        "Autograd does not record the group's collectives: a torch.autograd.Function must.",
        [
            g.patch(SCATTER, SCATTER.replace("z_ND", "z_ND.detach()")),
            g.patch("_AllGather.apply(normed_nD", "_gathered(normed_nD"),
            g.patch("return residual_nD, ", "return residual_nD.detach(), "),
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
                "return _reduced(gradient_ND, ctx.num_rows, ctx.group)",
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
        "would differ between the ranks: all-reduce the gradient, as a sum.",
        g.patches(SUMMED, "gradient_D", f'{SUMMED[:-1]}, op="mean")'),
        hint=2,
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
        [
            g.patch("len(x_nD), group", "len(x_nD), group; ctx.x = x_nD.new_zeros(num_rows, 12)"),
            g.patch("return group.reduce", "more = 2 * x_ND, x_ND / 2\n    return group.reduce"),
        ],
        # An all-reduce may have one more for a moment.
        over_budget=lambda s: has_many_rows(s) and not all_reduces_rows(s),
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
