"""Grade load_balancing_loss: both losses, and the gradient of each."""

from collections.abc import Callable
from typing import Any

import torch

from labkit.grade.grader import Case, Draw, Mistake, Observed, Outcome, Questions, patch
from labkit.grade.graders.top_k_capacity import same

Tensor = torch.Tensor
PARTS = ("balance", "z", "gradient of balance", "gradient of z")


def cases(draw: Draw) -> list[Case]:
    """Drops, k of 1 and of E, balance, collapse, large logits, float32."""
    is_high = (torch.arange(9)[:, None] + torch.arange(5)) % 3 == 0
    even = torch.stack([torch.arange(8) % 4, (torch.arange(8) + 1) % 4], 1)
    return [
        case("two choices", draw, 12, 5, 2),
        case("one choice", draw, 11, 4, 1),
        case("three choices", draw, 7, 6, 3),
        case("all experts are chosen", draw, 6, 4, 4),
        case("each expert chosen as often", draw, 8, 4, 2, expert=even),
        case("the last experts are not chosen", draw, 8, 4, 2, expert=even % 2),
        case("all to one expert", draw, 9, 4, 1, expert=torch.full((9, 1), 3)),
        case("one expert", draw, 5, 1, 1),
        case("logits near 1,000", draw, 9, 5, 2, shift=1000.0),
        case("logits of 1,000 and -1,000", draw, 9, 5, 2, shift=1000 * (2.0 * is_high - 1)),
        case("float32", draw, 10, 5, 2, dtype=torch.float32),
    ]


def case(
    label: str,
    draw: Draw,
    num_tokens: int,
    num_experts: int,
    k: int,
    *,
    expert: Tensor | None = None,
    shift: Tensor | float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """Random logits, experts that need not be the best ones, and drops of about one in three."""
    logits = 1.5 * draw.same(num_tokens, num_experts, dtype=dtype) + shift
    if expert is None:
        expert = draw.same(num_tokens, num_experts).topk(k).indices
    kept = draw.same(num_tokens, k) < 0.5
    kept[0, 0], kept[-1, -1] = True, False
    return Case(
        f"{label}: {num_tokens} tokens, {num_experts} experts, k = {k}", logits, expert, kept
    )


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Both losses and their gradients, by name."""
    logits = args[0].requires_grad_()
    returned = watch.function(*args)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return returned
    return dict(zip(PARTS, [*returned, *(gradient(loss, logits) for loss in returned)]))


def gradient(loss: Any, logits: Tensor) -> Tensor:
    """The gradient of the logits; 0 where the loss has no graph."""
    found = None
    if isinstance(loss, Tensor) and loss.requires_grad and loss.numel() == 1:
        found = torch.autograd.grad(loss, logits, retain_graph=True, allow_unused=True)[0]
    return torch.zeros_like(logits) if found is None else found


def f(logits: Tensor, expert: Tensor, kept: Tensor) -> Tensor:
    """The share of each expert."""
    chosen = expert.flatten()[:, None] == torch.arange(logits.shape[1])
    return chosen.to(logits.dtype).mean(0)


def p(logits: Tensor, expert: Tensor, kept: Tensor) -> Tensor:
    """The mean probability of each expert."""
    return logits.softmax(1).mean(0)


def losses(
    logits: Tensor,
    expert: Tensor,
    kept: Tensor,
    f: Callable[..., Tensor] = f,
    p: Callable[..., Tensor] = p,
    z: Callable[[Tensor], Tensor] = lambda lse: (lse * lse).mean(),
) -> dict[str, Tensor]:
    """Both losses and their gradients; a mistake replaces one of the rules."""
    logits = logits.detach().requires_grad_()
    shares, means = f(logits.detach(), expert, kept), p(logits, expert, kept)
    largest = logits.detach().amax(1)
    lse = (logits - largest[:, None]).exp().sum(1).log() + largest
    both = [logits.shape[1] * torch.dot(shares, means), z(lse)]
    return dict(zip(PARTS, [*(x.detach() for x in both), *(gradient(x, logits) for x in both)]))


def has(part: str, *rules: dict[str, Any]) -> Callable[[Observed], bool]:
    """A predicate: this loss is wrong, and is that of other rules, in float32."""
    return lambda s: (
        not same(s.y[part], s.right[0][part])
        and any(same(s.y[part].float(), losses(*s.args, **rule)[part].float()) for rule in rules)
    )


def counted(choose: Callable[..., tuple[Tensor, Any]]) -> dict[str, Any]:
    """A wrong rule for f: `choose` gives the choices that are counted, and what divides them."""

    def f(logits: Tensor, expert: Tensor, kept: Tensor) -> Tensor:
        choices, total = choose(logits, expert, kept)
        return torch.bincount(choices.flatten(), minlength=logits.shape[1]).to(logits) / total

    return {"f": f}


def p_of_the_chosen(logits: Tensor, expert: Tensor, kept: Tensor) -> Tensor:
    """A wrong rule for P: without the tokens that did not choose the expert."""
    return (logits.softmax(1) * torch.zeros_like(logits).scatter(1, expert, 1.0)).mean(0)


def p_per_choice(logits: Tensor, expert: Tensor, kept: Tensor) -> Tensor:
    """A wrong rule for P: each expert's mean over the tokens that chose it."""
    chosen = f(logits, expert, kept) * expert.shape[1]
    return p_of_the_chosen(logits, expert, kept) / chosen.clamp(min=1e-9)


COUNTS = "counts_E = torch.bincount(expert_TK.flatten(), minlength=num_experts).to(logits_TE)"

MISTAKES = [
    Mistake(
        "counts only the kept choices",
        "Dropped choices are the overload that the loss is for. f counts what the router chose, so "
        "kept_TK plays no part.",
        hint=3,
        seen=has(
            "balance",
            counted(lambda logits, expert, kept: (expert[kept], expert.numel())),
            counted(lambda logits, expert, kept: (expert[kept], kept.sum())),
        ),
        made_by=patch(COUNTS, COUNTS.replace("expert_TK.flatten()", "expert_TK[kept_TK]")),
    ),
    Mistake(
        "counts only the first choices",
        "f is the share of all T k choices, second choices included.",
        seen=has("balance", counted(lambda logits, expert, _: (expert[:, 0], len(expert)))),
        made_by=patch(
            COUNTS,
            COUNTS.replace("expert_TK.flatten()", "expert_TK[:, 0]"),
            "expert_TK.numel()",
            "len(expert_TK)",
        ),
    ),
    Mistake(
        "chooses the experts again",
        "The router has chosen expert_TK, with a bias perhaps. f counts these choices, not the "
        "largest logits.",
        seen=has(
            "balance",
            counted(lambda logits, expert, _: (logits.argmax(1), len(expert))),
            counted(lambda logits, e, _: (logits.topk(e.shape[1]).indices, e.numel())),
        ),
        made_by=patch(
            COUNTS, COUNTS.replace("expert_TK", "logits_TE.topk(expert_TK.shape[1]).indices")
        ),
    ),
    Mistake(
        "the shares do not add up to 1",
        "There are T k choices. f_e is the number of choices for expert e divided by all of them, "
        "expert_TK.numel().",
        hint=2,
        seen=has(
            "balance",
            counted(lambda logits, expert, _: (expert, len(expert))),
            counted(lambda logits, expert, _: (expert, 1)),
        ),
        made_by=patch("expert_TK.numel()", "len(expert_TK)"),
    ),
    Mistake(
        "forgets experts that nobody chose",
        "bincount ends at the largest number in it. With minlength=E it counts all experts.",
        hint=3,
        outcome=Outcome.CRASHED,
        seen=lambda s: bool(s.error) and s.args[1].max() < s.xs.shape[1] - 1,
        made_by=patch(", minlength=num_experts", ""),
    ),
    Mistake(
        "the factor E is missing",
        "Without it the loss in perfect balance is 1 / E. With it, 1 for every number of experts.",
        hint=2,
        seen=has(
            "balance", {"p": lambda logits, expert, kept: p(logits, expert, kept) / logits.shape[1]}
        ),
        made_by=patch("num_experts * (f_E * p_E)", "(f_E * p_E)"),
    ),
    Mistake(
        "averages p over the tokens that chose the expert",
        "P_e is the mean of p_e over all tokens. A gradient has to reach the tokens that did not "
        "choose the expert, too.",
        seen=has("balance", {"p": p_of_the_chosen}, {"p": p_per_choice}),
        made_by=patch(
            "p_E = torch.softmax(logits_TE, dim=1).mean(dim=0)",
            "p_E = torch.softmax(logits_TE, dim=1) * torch.zeros_like(logits_TE).scatter("
            "1, expert_TK, 1.0)\n    p_E = p_E.mean(dim=0)",
        ),
    ),
    Mistake(
        "softmax over the tokens",
        "p is the softmax over the experts of each token, dim=1 of (T, E).",
        hint=3,
        seen=has("balance", {"p": lambda logits, expert, kept: logits.softmax(0).mean(0)}),
        made_by=patch("softmax(logits_TE, dim=1)", "softmax(logits_TE, dim=0)"),
    ),
    Mistake(
        "z is not the mean of squares",
        "Square each token's log-sum-exp, then take the mean over tokens: positive and negative "
        "ones must not cancel, and z must not grow with the batch.",
        hint=3,
        seen=has(
            "z",
            {"z": torch.mean},
            {"z": lambda lse: lse.mean().square()},
            {"z": lambda lse: lse.square().sum()},
        ),
        made_by=patch("square().mean()", "mean().square()"),
    ),
    Mistake(
        "returns z first",
        "The order is (balance, z).",
        hint=3,
        seen=lambda s: same(s.y["balance"], s.right[0]["z"]),
        made_by=patch("return balance, z", "return z, balance"),
    ),
    Mistake(
        "a loss overflows",
        "exp(1,000) is inf. Subtract each token's largest logit first, as torch.softmax and "
        "torch.logsumexp do. With the mean or another logit subtracted, exp may still overflow.",
        hint=2,
        seen=lambda s: (
            s.xs.abs().max() > 700 and not all(s.y[part].isfinite().all() for part in PARTS)
        ),
        made_by=patch("torch.logsumexp(logits_TE, dim=1)", "logits_TE.exp().sum(1).log()"),
    ),
    Mistake(
        "a loss has no gradient",
        "The counts are constants, but P and z must keep their graph: no detach(), item(), "
        "tolist() or new tensor made from numbers.",
        hint=3,
        seen=lambda s: any(
            not s.y[f"gradient of {part}"].any() and same(s.y[part], s.right[0][part])
            for part in ("balance", "z")
        ),
        made_by=patch("softmax(logits_TE, dim=1).mean", "softmax(logits_TE.detach(), dim=1).mean"),
    ),
]

GRADER = Questions(
    name="load_balancing_loss",
    cases=cases,
    right=losses,
    call=call,
    num_arguments=3,
    same=same,
    mistakes=MISTAKES,
    closed=("labkit.moe",),
    shown="both losses and their gradients are right, in balance and in collapse, with dropped "
    "choices, and for logits of 1,000 and -1,000",
)
