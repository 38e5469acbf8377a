"""Grade lora_linear: output, gradients of x, A and B; nothing forward, two all-reduces backward."""

from typing import Any

import torch
from torch.nn.functional import linear

from labkit.grade import grader as g

KEYS = ["y", *(f"gradient of {x}" for x in ("x_BTI", "a_KrI", "b_Kor"))]
ROWS = {
    "each row its own adapter": [1, 0, 2, 1, 0],
    "rows without an adapter": [0, -1, 2, -1, 0],
    "an adapter without rows": [2, 2, -1, 0, 2],
    "one adapter for all rows": [1, 1, 1, 1, 1],
}


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Outputs that n divides, outputs that it does not, and a rank without outputs."""
    listed, pick = [], draw.rng.choice
    for (label, rows), num_out in zip(ROWS.items(), (4 * n, 5 * n - 1, max(1, n - 1), 3 * n + 1)):
        # B T numbers are more than K I: a sum whose size grows with the tokens is over budget. And
        # no sum that is needed has a multiple of T r numbers, the size of a row's h.
        T, num_in, r = pick((13, 17)), pick((7, 11)), pick((2, 3))
        shapes = (5, T, num_in), (num_out, num_in), (3, r, num_in), (3, num_out, r), (5, T, num_out)
        x, w, a, b, dy = (draw.same(*s, dtype=torch.float64) for s in shapes)
        scale = draw.rng.choice((0.5, 1.5, 2.0))
        shards = w.tensor_split(n), b.tensor_split(n, dim=1), dy.tensor_split(n, dim=2)
        of_w, of_b, of_dy = map(g.ByRank, shards)
        name = f"{label}: {rows}, O = {num_out}"
        listed.append(g.Case(name, x, of_w, a, of_b, torch.tensor(rows), scale, of_dy))
    return listed


def call(watch: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Call the function and send this rank's gradient of y backward."""
    x, w, a, b, adapter_B, scale, dy = args
    for leaf in (x, a, b):
        leaf.requires_grad_()
    inner = x.view_as(x)  # no leaf, as if a layer before had returned it
    y = watch.function(inner, w, a, b, adapter_B, scale, watch.group)
    if not isinstance(y, torch.Tensor) or y.shape != dy.shape:
        return {**dict.fromkeys(KEYS), "y": y}
    value = y.detach().clone()
    if y.requires_grad:
        (y * dy).sum().backward()
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in (x, a, b)]
    return dict(zip(KEYS, [value, *gradients]))


def right(x: Any, w: Any, a: Any, b: Any, adapter_B: Any, scale: float, dy: Any) -> g.ByRank:
    """One process, row by row with the whole W + scale B A; gradients and y are then cut."""
    leaves = [each.clone().requires_grad_() for each in (x, a, torch.cat(b, dim=1))]
    whole_x, whole_a, whole_b = leaves
    rows = []
    for row, k in zip(whole_x, adapter_B.tolist()):
        change = scale * whole_b[k] @ whole_a[k] if k >= 0 else 0
        rows.append(linear(row, torch.cat(w) + change))
    y = torch.stack(rows)
    (y * torch.cat(dy, dim=2)).sum().backward()
    of_x, of_a, of_b = (leaf.grad for leaf in leaves)
    sizes = [len(each) for each in w]
    cut = zip(y.detach().split(sizes, dim=2), of_b.split(sizes, dim=1))
    return g.ByRank(dict(zip(KEYS, [of_y, of_x, of_a, own_b])) for of_y, own_b in cut)


def budget(s: g.Observed) -> g.Budget:
    """An all-reduce of x's size and one of A's."""
    x, a = s.xs, s.args[2]
    return g.Budget(collectives=2, sent_bytes=2 * (s.n - 1) / s.n * (x.nbytes + a.nbytes))


ENTER_X, ENTER_A = "x_BTI = _Copied.apply(x_BTI, group)", "a_KrI = _Copied.apply(a_KrI, group)"
A_X, PLAIN_A = "linear(x_BTI[rows_N], a_KrI[k])", "a_KrI = a_KrI.view_as(a_KrI)"
H = f"h_NTr = {A_X}"
CHANGE = "linear(h_NTr, b_Kor[k]) * scale"
ROWS_OF = "(adapter_B == k)"


def bytes_of_h(s: g.Observed) -> int:
    """Return the bytes of A x for one row of the batch, T r numbers."""
    return s.xs.shape[1] * s.args[2].shape[1] * s.xs.itemsize


MISTAKES = [
    g.Mistake(
        "forgets the scale",
        "An adapter's change is scale * B A x, with scale = alpha / r. It is part of the gradients "
        "of A and B, too.",
        g.patch(CHANGE, "linear(h_NTr, b_Kor[k])"),
    ),
    g.Mistake(
        "gives rows without an adapter the last one",
        "-1 means the base alone. As an index it is the last adapter of a tensor.",
        g.patch(ROWS_OF, "(adapter_B % len(a_KrI) == k)"),
        hint=3,
    ),
    g.Mistake(
        "leaves the rows grouped by adapter",
        "Grouping the rows makes one product for each adapter. The result must go back to the "
        "places of its rows.",
        g.patch("return y_BTo\n", "return y_BTo[adapter_B.argsort(stable=True)]\n"),
        hint=3,
    ),
    g.Mistake(
        "does not sum the gradient of A",
        "h = A x is the same on every rank, but its gradient comes from this rank's outputs only. "
        "So the gradient of A is a partial sum: add it up over the ranks.",
        g.patch(ENTER_A, PLAIN_A),
        hint=2,
    ),
    g.Mistake(
        "does not sum the gradient of x",
        "Every output feature uses x, and this rank has some of them. The gradient of x is the sum "
        "over the ranks, for the base and for the adapters.",
        g.patch(ENTER_X, "x_BTI = x_BTI.view_as(x_BTI)"),
        hint=2,
    ),
    g.Mistake(
        "the adapters' part of x's gradient is not summed",
        "Both paths must read the x whose gradient is summed. Else what comes through A stays a "
        "partial sum of this rank.",
        g.patch(ENTER_X, f"whole_BTI = x_BTI\n    {ENTER_X}", H, H.replace("x_BTI[", "whole_BTI[")),
        hint=3,
    ),
    g.Mistake(
        "the adapters' part of x's gradient counts n times",
        "After the gradient of h is summed, each rank has the whole gradient that comes through A. "
        "A second sum, where x enters the layer, adds n copies of it.",
        g.patch(ENTER_A, PLAIN_A, H, f"h_NTr = _Copied.apply({A_X}, group)"),
        hint=3,
    ),
    g.Mistake(
        "averages over the ranks",
        "The ranks hold parts of one layer and see the same tokens. Their gradients of x and A are "
        "parts of a sum, and no mean is taken.",
        g.patch("all_reduce(gradient)", "all_reduce(gradient) / ctx.group.size"),
        hint=2,
    ),
    g.Mistake(
        "an all-reduce for each of the two paths",
        "The results are right. But the gradients of x from the base and from the adapters can be "
        "added on this rank first: one all-reduce carries both.",
        g.patch(
            ENTER_X,
            f"other_BTI = _Copied.apply(x_BTI, group)\n    {ENTER_X}",
            H,
            H.replace("x_BTI[", "other_BTI["),
        ),
        over_budget=lambda s: [e.nbytes for e in s.operations(0)].count(s.xs.nbytes) > 1,
        hint=2,
    ),
    g.Mistake(
        "sums the gradient of h, which grows with the tokens",
        "The results are right. But h has T r numbers for each row of the batch, so this sum grows "
        "with the tokens. The gradient of A has K r I numbers, however many tokens there are.",
        g.patch(
            ENTER_X,
            f"whole_BTI = x_BTI\n    {ENTER_X}",
            ENTER_A,
            PLAIN_A,
            H,
            f"h_NTr = _Copied.apply({A_X.replace('x_BTI[', 'whole_BTI[')}, group)",
        ),
        over_budget=lambda s: any(e.nbytes % bytes_of_h(s) == 0 for e in s.operations(0)),
        hint=2,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    same=g.within(500),
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_reduce", "all_gather"),
    world_sizes=(3, 2, 1),
    closed=("labkit.lora", "labkit.tensor_parallel", "labkit.collectives"),
    shown="output and gradients are those of one process with W + scale B A of each row's adapter; "
    "there is nothing forward and two all-reduces backward, and only that of x grows with the "
    "tokens",
)
