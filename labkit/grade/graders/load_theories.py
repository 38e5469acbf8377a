"""Mistakes in the load-balancing loss, by the numbers and gradients that come of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Given(NamedTuple):
    """What a case is made of."""

    logits: Tensor
    experts: Tensor
    """(T, K)"""
    kept: Tensor
    """(T, K)"""

    @property
    def num_experts(self) -> int:
        """E."""
        return self.logits.shape[1]


class Mistake(NamedTuple):
    """A name for it, and the loss that it leads to, of logits with a graph."""

    name: str
    explanation: str
    loss: Callable[[Given, Tensor], Tensor]
    hint: int = 2


def shares(given: Given, experts: Tensor | None = None) -> Tensor:
    """(E,): f, or that of other choices."""
    chosen = (given.experts if experts is None else experts).flatten()
    counts = torch.bincount(chosen, minlength=given.num_experts)
    return counts.to(given.logits) / max(chosen.numel(), 1)


def means(logits_TE: Tensor) -> Tensor:
    """(E,): P."""
    return torch.softmax(logits_TE, 1).mean(0)


def balance(given: Given, logits_TE: Tensor) -> Tensor:
    """As it should be."""
    return _of(shares(given), means(logits_TE))


def _of(f_E: Tensor, p_E: Tensor) -> Tensor:
    return len(f_E) * (f_E * p_E).sum()


def _masked(given: Given, logits_TE: Tensor) -> Tensor:
    """(T, E): p, and 0 where an expert is not chosen."""
    p = torch.softmax(logits_TE, 1)
    return p * torch.zeros_like(p).scatter(1, given.experts, 1)


def _own_choice(given: Given, k: int) -> Tensor:
    return given.logits.topk(k, 1).indices


def _variation(load_E: Tensor) -> Tensor:
    return load_E.var(unbiased=False) / load_E.mean().square()


def _straight_through(given: Given, logits_TE: Tensor) -> Tensor:
    """f with the value of the counts and the gradient of the probabilities."""
    p = means(logits_TE)
    return _of(shares(given) + p - p.detach(), p)


_ONLY_KEPT = (
    "counts kept choices alone",
    "f leaves out the choices that were dropped. They are those of the experts that too many "
    "want: without them an overloaded expert has a full buffer and no more, and the loss does not "
    "see by how much too many it was. Count what the router wanted",
)
_CHOSEN = (
    "averages p over those who chose the expert",
    "a token counts in P only for experts that it has chosen: P is the mean of p over all tokens, "
    "also over those that went elsewhere. There the gradient comes from that makes an expert that "
    "nobody chooses likelier",
)
_AGAIN = (
    "chooses again",
    "f is of the largest logits, and not of expert_TK: where a bias has moved tokens, these are "
    "other experts, and the load is what expert_TK says",
)
_VARIATION = (
    "a coefficient of variation",
    "that is the loss of Shazeer et al. (2017), the variance over the squared mean: 0 in balance. "
    "The contract is E times the sum of f P: 1 in balance",
)

BALANCE: Sequence[Mistake] = (
    Mistake(
        "E is missing",
        "the sum of f P is 1/E in perfect balance: with the factor E it is 1, however many experts "
        "there are, and so one coefficient fits all",
        lambda given, logits: balance(given, logits) / given.num_experts,
    ),
    Mistake(
        "k times as much",
        "f is a share of tokens, and with k choices each its sum is k, and the loss in balance is "
        "k. Some do it so (Mixtral's in transformers); here f is a share of the T k choices, and "
        "balance is 1 for every k",
        lambda given, logits: given.experts.shape[1] * balance(given, logits),
    ),
    Mistake(
        "counts in the place of shares",
        "f is how many choices an expert has: divide by T k, or the loss grows with the batch",
        lambda given, logits: given.experts.numel() * balance(given, logits),
    ),
    Mistake(
        "sums p over the tokens",
        "P is the sum of p over tokens, and grows with the batch: it is the mean",
        lambda given, logits: len(logits) * balance(given, logits),
    ),
    Mistake(
        "E is there twice",
        "the loss is 1 in perfect balance, and this is E: f or P, or their product, has a factor E "
        "of its own",
        lambda given, logits: given.num_experts * balance(given, logits),
    ),
    Mistake(
        *_ONLY_KEPT,
        lambda given, logits: _of(shares(given, given.experts[given.kept]), means(logits)),
        3,
    ),
    Mistake(
        *_ONLY_KEPT,
        lambda given, logits: (
            _of(shares(given, given.experts[given.kept]), means(logits))
            * given.kept.to(logits).mean()
        ),
        3,
    ),
    Mistake(
        "counts dropped choices alone",
        "f is of the choices that were dropped: kept_TK is True where a choice found a slot. All "
        "choices count, kept or not",
        lambda given, logits: (
            _of(shares(given, given.experts[~given.kept]), means(logits))
            * (1 - given.kept.to(logits).mean())
        ),
    ),
    Mistake(
        "counts first choices alone",
        "f is of the tokens' first choices. An expert works for those who chose it second, too",
        lambda given, logits: _of(shares(given, given.experts[:, 0]), means(logits)),
    ),
    Mistake(
        *_AGAIN, lambda given, logits: _of(shares(given, _own_choice(given, 1)), means(logits))
    ),
    Mistake(
        *_AGAIN,
        lambda given, logits: _of(
            shares(given, _own_choice(given, given.experts.shape[1])), means(logits)
        ),
    ),
    Mistake(*_CHOSEN, lambda given, logits: _of(shares(given), _masked(given, logits).mean(0))),
    Mistake(
        *_CHOSEN,
        lambda given, logits: _of(
            shares(given),
            (_masked(given, logits) / _masked(given, logits).sum(1, keepdim=True)).mean(0),
        ),
    ),
    Mistake(
        *_CHOSEN,
        lambda given, logits: _of(
            shares(given),
            _masked(given, logits).sum(0) / (shares(given) * given.experts.numel()).clamp(min=1),
        ),
    ),
    Mistake(
        "the mean over experts, too",
        "the mean over tokens and experts of p is 1/E, whatever the router does: the loss is "
        "always 1, and has no gradient. P is a mean over tokens, one for each expert",
        lambda given, logits: (
            shares(given).sum() * torch.softmax(logits, 1).mean() * len(logits[0])
        ),
    ),
    Mistake(
        "softmax over the tokens",
        "each column of p adds up to 1, and so every P is 1/T: the softmax of a token is over its "
        "experts, dim=1",
        lambda given, logits: _of(shares(given), torch.softmax(logits, 0).mean(0)),
    ),
    Mistake(
        "the mean of logits for P",
        "P is the mean of probabilities: a softmax comes first",
        lambda given, logits: _of(shares(given), logits.mean(0)),
    ),
    Mistake(
        "softmax of the mean logits",
        "P is the mean of the tokens' softmaxes, and not the softmax of the mean of their logits: "
        "where tokens are sure and differ, the two are far apart",
        lambda given, logits: _of(shares(given), torch.softmax(logits.mean(0), 0)),
    ),
    Mistake(
        "f in the place of P",
        "E times the sum of f f measures balance, and has no gradient: one of the two factors is "
        "P, which has one",
        lambda given, logits: _of(shares(given), shares(given)),
    ),
    Mistake(
        "P in the place of f",
        "E times the sum of P P says what the router gives each expert on average, and not whom "
        "it chooses: with P balanced one expert may still be everybody's narrow favourite",
        lambda given, logits: _of(means(logits), means(logits)),
    ),
    Mistake(*_VARIATION, lambda given, logits: _variation(means(logits))),
    Mistake(*_VARIATION, lambda given, logits: _variation(shares(given))),
    Mistake(
        "0 in balance",
        "1 was subtracted: a constant changes no gradient, but the contract is 1 in balance",
        lambda given, logits: balance(given, logits) - 1,
    ),
)

BALANCE_GRADIENTS: Sequence[Mistake] = (
    Mistake(
        "a gradient through f",
        "the value is right, and the gradient is larger: f has one as well, as from a "
        "straight-through estimator. Counts have no gradient, and the loss is made so that it "
        "needs none",
        _straight_through,
    ),
    Mistake(
        "a gradient through f alone",
        "the value is right, and the gradient is that of a soft f, with P as a number: it is the "
        "other way round",
        lambda given, logits: _of(means(logits), shares(given)) + _detached(given, logits),
    ),
)


def _detached(given: Given, logits_TE: Tensor) -> Tensor:
    """What makes the value right, without a gradient."""
    p = means(logits_TE).detach()
    return _of(shares(given), p) - _of(p, shares(given))
