"""Grade load_balancing_loss: each loss with its gradient."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from labkit.grade import grader as g

PARTS = ("balance", "z")
GRADIENT = "gradient of logits_TE, plus 1"


def cases(draw: g.Draw) -> Iterator[g.Case]:
    """Drops, k of 1 and of E, balance, collapse, large logits, float32; by loss."""

    def logits(T: int, E: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return 1.5 * draw.same(T, E, dtype=dtype)

    def chosen(T: int, E: int, k: int) -> Tensor:
        return draw.same(T, E).topk(k).indices  # they need not be the best ones

    is_high = (torch.arange(9)[:, None] + torch.arange(5)) % 3 == 0
    is_high[0] = False
    even = torch.stack([torch.arange(8) % 4, (torch.arange(8) + 1) % 4], 1)
    for label, logits_TE, expert_TK in [
        ("two choices", logits(12, 5), chosen(12, 5, 2)),
        ("one choice", logits(11, 4), chosen(11, 4, 1)),
        ("all experts are chosen", logits(6, 4), chosen(6, 4, 4)),
        ("each expert chosen as often", logits(8, 4), even),
        ("the last experts are not chosen", logits(8, 4), even % 2),
        ("all to one expert", logits(9, 4), torch.full((9, 1), 3)),
        ("one expert", logits(5, 1), torch.zeros(5, 1).long()),
        ("logits of 1,000 and -1,000", logits(9, 5) + 2000.0 * is_high - 1000, chosen(9, 5, 2)),
        ("float32", logits(10, 5, torch.float32), chosen(10, 5, 2)),
    ]:
        kept_TK = draw.same(*expert_TK.shape) < 0.5
        kept_TK[0, 0], kept_TK[-1, -1] = True, False
        (T, E), k = logits_TE.shape, expert_TK.shape[1]
        for part in PARTS:
            in_words = f"{part}, {label}: {T} tokens, {E} experts, k = {k}"
            yield g.Case(in_words, logits_TE, expert_TK, kept_TK, part)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Return the learner's loss with its gradient."""
    return with_gradient(watch.function, args)


def with_gradient(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return the loss that the case asks for, and its gradient."""
    logits_TE, *others, part = args
    logits_TE = logits_TE.detach().requires_grad_()
    returned = function(logits_TE, *others)
    if not isinstance(returned, tuple | list) or len(returned) != len(PARTS):
        return returned
    loss = returned[PARTS.index(part)]
    # logits_TE is a term because `close` cannot compare gradients that are nearly 0.
    total = logits_TE.sum() + (loss.sum() if isinstance(loss, Tensor) else 0)
    return {"loss": loss, GRADIENT: torch.autograd.grad(total, logits_TE)[0]}


def losses(logits_TE: Tensor, expert_TK: Tensor, kept_TK: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of one-hot choices is f; a logit without its log p is the log of the sum."""
    E = logits_TE.shape[1]
    f_E = torch.nn.functional.one_hot(expert_TK, E).to(logits_TE).mean((0, 1))
    log_sum_T = (logits_TE - logits_TE.log_softmax(1))[:, 0]
    return E * f_E @ logits_TE.softmax(1).mean(0), (log_sum_T**2).mean()


LARGEST = "logits_TE.topk(expert_TK.shape[1]).indices.flatten()"
CHOICES, TOTAL = "expert_TK.flatten()", "expert_TK.numel()"
MISTAKES = [
    g.Mistake(
        "f or P is not over all choices, tokens and experts",
        "Dropped choices are the overload that the loss is for. f counts what the router chose, P "
        "is the mean over all tokens of a softmax over experts, and kept_TK plays no part.",
        [
            *(g.patch(CHOICES, "expert_TK[kept_TK]", TOTAL, by) for by in (TOTAL, "kept_TK.sum()")),
            *g.patches("dim=1).mean", "dim=1)[kept_TK.any(1)].mean", "dim=0).mean"),
        ],
        hint=3,
    ),
    g.Mistake(
        "counts other choices than the router's",
        "expert_TK has what the router chose, with a bias perhaps. f counts all T k of these "
        "choices, second ones too, and not the largest logits.",
        [
            g.patch(CHOICES, by, TOTAL, "counts_E.sum()")
            for by in ("expert_TK[:, 0]", "logits_TE.argmax(1)", LARGEST)
        ],
    ),
    g.Mistake(
        "the balance loss has another scale",
        "In perfect balance it is 1, for every E and k. There are T k choices: f_e is the number "
        "of those for expert e divided by all of them, expert_TK.numel(). The sum is times E.",
        [g.patch(TOTAL, "len(expert_TK)"), g.patch("num_experts * (f", "(f")],
        hint=2,
    ),
    g.Mistake(
        "z is not the mean of squares",
        "Square each token's log-sum-exp, then take the mean over tokens: positive and negative "
        "ones must not cancel, and z must not grow with the batch.",
        g.patches("square().mean()", "mean().square()", "square().sum()", "mean()"),
        hint=3,
    ),
    g.Mistake(
        "a loss overflows",
        "exp(1,000) is inf. Subtract each token's largest logit first, as torch.softmax and "
        "torch.logsumexp do. With the mean or another logit subtracted, exp may still overflow.",
        g.patch("torch.logsumexp(logits_TE, dim=1)", "logits_TE.exp().sum(1).log()"),
        wrong=lambda s: (
            s.xs.abs().max() > 700 and not all(x.isfinite().all() for x in s.y.values())
        ),
        hint=2,
    ),
    g.Mistake(
        "a loss has no gradient",
        "The counts are constants, but P and z must keep their graph: no detach(), item(), "
        "tolist() or new tensor made from numbers.",
        g.patch("softmax(logits_TE, dim=1)", "softmax(logits_TE.detach(), dim=1)"),
        wrong=lambda s: (
            (s.y[GRADIENT] == 1).all() and g.close(s.y["loss"], s.right[0]["loss"], steps=10_000)
        ),
        hint=3,
    ),
]

GRADER = g.Questions(
    cases=cases,
    right=lambda *args: with_gradient(losses, args),
    call=call,
    same=g.within(10_000),  # logits of 1,000
    mistakes=MISTAKES,
    closed=("labkit.moe",),
    shown="both losses and their gradients are right, in balance and in collapse, with dropped "
    "choices, and for logits of 1,000 and -1,000",
)
