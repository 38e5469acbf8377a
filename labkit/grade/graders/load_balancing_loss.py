"""Grade load_balancing_loss: each loss with its gradient."""

import itertools
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g

PARTS = ("balance", "z")


def cases(draw: g.Draw) -> list[g.Case]:
    """Drops, k of 1 and of E, balance, collapse, large logits, float32; by loss."""
    is_high = (torch.arange(9)[:, None] + torch.arange(5)) % 3 == 0
    even = torch.stack([torch.arange(8) % 4, (torch.arange(8) + 1) % 4], 1)
    asked: list[tuple[str, int, int, int, dict[str, Any]]] = [
        ("two choices", 12, 5, 2, {}),
        ("one choice", 11, 4, 1, {}),
        ("three choices", 7, 6, 3, {}),
        ("all experts are chosen", 6, 4, 4, {}),
        ("each expert chosen as often", 8, 4, 2, {"expert": even}),
        ("the last experts are not chosen", 8, 4, 2, {"expert": even % 2}),
        ("all to one expert", 9, 4, 1, {"expert": torch.full((9, 1), 3)}),
        ("one expert", 5, 1, 1, {}),
        ("logits near 1,000", 9, 5, 2, {"shift": 1000.0}),
        ("logits of 1,000 and -1,000", 9, 5, 2, {"shift": 1000 * (2.0 * is_high - 1)}),
        ("float32", 10, 5, 2, {"dtype": torch.float32}),
    ]
    listed = []
    for part, (label, T, E, k, its) in itertools.product(PARTS, asked):
        logits = 1.5 * draw.same(T, E, dtype=its.get("dtype", torch.float64)) + its.get("shift", 0)
        # Experts need not be the best ones.
        expert = its.get("expert", draw.same(T, E).topk(k).indices)
        kept = draw.same(T, k) < 0.5
        kept[0, 0], kept[-1, -1] = True, False
        label = f"{part}, {label}: {T} tokens, {E} experts, k = {k}"
        listed.append(g.Case(label, logits, expert, kept, part))
    return listed


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """The loss that the case asks for, and its gradient."""
    *given, part = args
    logits = given[0].requires_grad_()
    returned = watch.function(*given)
    if not isinstance(returned, tuple | list) or len(returned) != len(PARTS):
        return returned
    return with_gradient(returned[PARTS.index(part)], logits)


def with_gradient(loss: Any, logits: Tensor) -> dict[str, Any]:
    """The loss and the gradient of the logits; 0 where the loss has no graph."""
    gradient = None
    if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
        gradient = torch.autograd.grad(loss, logits, allow_unused=True)[0]
    return {"loss": loss, "gradient": torch.zeros_like(logits) if gradient is None else gradient}


def right(logits: Tensor, expert: Tensor, kept: Tensor, part: str) -> dict[str, Any]:
    """The mean of one-hot choices is f; a logit without its log p is the log of the sum."""
    logits, E = logits.detach().requires_grad_(), logits.shape[1]
    f = torch.nn.functional.one_hot(expert, E).to(logits).mean((0, 1))
    log_sum = (logits - logits.log_softmax(1))[:, 0]
    loss = E * f @ logits.softmax(1).mean(0) if part == "balance" else (log_sum**2).mean()
    return with_gradient(loss, logits)


def same(got: Any, right: dict[str, Tensor], case: g.Case) -> bool:
    """As `close`, with room for rounding: logits of 1,000, and gradients that should be 0."""
    room = 1e4 * torch.finfo(right["loss"].dtype).eps
    return isinstance(got, dict) and all(
        isinstance(x := got[name], Tensor)
        and (x.shape, x.dtype) == (y.shape, y.dtype)
        and torch.allclose(x, y, room, room)
        for name, y in right.items()
    )


CHOICES, P = "expert_TK.flatten()", "torch.softmax(logits_TE, dim=1).mean(dim=0)"
CHOSEN = "torch.zeros_like(logits_TE).scatter(1, expert_TK, 1.0)"
P_CHOSEN = f"(torch.softmax(logits_TE, dim=1) * {CHOSEN}).mean(dim=0)"
TOTAL, Z = "expert_TK.numel()", "square().mean()"
MISTAKES = [
    g.Mistake(
        "counts only the kept choices",
        "Dropped choices are the overload that the loss is for. f counts what the router chose, so "
        "kept_TK plays no part.",
        [g.patch(CHOICES, "expert_TK[kept_TK]", TOTAL, by) for by in (TOTAL, "kept_TK.sum()")],
        hint=3,
    ),
    g.Mistake(
        "counts other choices than the router's",
        "expert_TK has what the router chose, with a bias perhaps. f counts all T k of these "
        "choices, second ones too, and not the largest logits.",
        [
            g.patch(CHOICES, "expert_TK[:, 0]", TOTAL, "len(expert_TK)"),
            g.patch(CHOICES, "logits_TE.argmax(1)", TOTAL, "len(expert_TK)"),
            g.patch(CHOICES, "logits_TE.topk(expert_TK.shape[1]).indices.flatten()"),
        ],
    ),
    g.Mistake(
        "forgets experts without tokens",
        "bincount ends at the largest number in it. With minlength=E it counts all experts.",
        g.patch(", minlength=num_experts", ""),
        crashed=lambda s: bool(s.error) and s.args[1].max() < s.xs.shape[1] - 1,
        hint=3,
    ),
    g.Mistake(
        "the balance loss has another scale",
        "In perfect balance it is 1, for every E and k. There are T k choices: f_e is the number "
        "of those for expert e divided by all of them, expert_TK.numel(). The sum is times E.",
        [
            g.patch(TOTAL, "len(expert_TK)"),
            g.patch(TOTAL, "1"),
            g.patch("num_experts * (f", "(f"),
            g.patch("num_experts * (f_E * p_E).sum()", "(f_E * p_E).mean()"),
        ],
        hint=2,
    ),
    g.Mistake(
        "averages p over the tokens that chose the expert",
        "P_e is the mean of p_e over all tokens. A gradient has to reach the tokens that did not "
        "choose the expert, too.",
        [g.patch(P, P_CHOSEN + by) for by in ("", f" / {CHOSEN}.mean(dim=0).clamp(min=1e-9)")],
    ),
    g.Mistake(
        "softmax over the tokens",
        "p is the softmax over the experts of each token, dim=1 of (T, E).",
        g.patch(P, P.replace("dim=1", "dim=0")),
        hint=3,
    ),
    g.Mistake(
        "z is not the mean of squares",
        "Square each token's log-sum-exp, then take the mean over tokens: positive and negative "
        "ones must not cancel, and z must not grow with the batch.",
        [g.patch(Z, by) for by in ("mean()", "mean().square()", "square().sum()")],
        hint=3,
    ),
    g.Mistake(
        "returns z first",
        "The order is (balance, z).",
        g.patch("return balance, z", "return z, balance"),
        hint=3,
    ),
    g.Mistake(
        "a loss overflows",
        "exp(1,000) is inf. Subtract each token's largest logit first, as torch.softmax and "
        "torch.logsumexp do. With the mean or another logit subtracted, exp may still overflow.",
        g.patch("torch.logsumexp(logits_TE, dim=1)", "logits_TE.exp().sum(1).log()"),
        seen=lambda s: s.xs.abs().max() > 700 and not all(x.isfinite().all() for x in s.y.values()),
        hint=2,
    ),
    g.Mistake(
        "a loss has no gradient",
        "The counts are constants, but P and z must keep their graph: no detach(), item(), "
        "tolist() or new tensor made from numbers.",
        g.patch(P, P.replace("logits_TE", "logits_TE.detach()")),
        seen=lambda s: not s.y["gradient"].any() and g.close(s.y["loss"], s.right[0]["loss"]),
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=right,
    call=call,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.moe",),
    shown="both losses and their gradients are right, in balance and in collapse, with dropped "
    "choices, and for logits of 1,000 and -1,000",
)
