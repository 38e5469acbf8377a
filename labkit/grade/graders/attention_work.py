"""How much of attention is computed: the FLOPs of its products, and its exponentials.

    scores   q . k            2 K FLOPs for each pair of a query and a key that it sees
    weights  exp(score - m)   1 exponential
    output   weight * v       2 K FLOPs

Products can be written by elements: then only exponentials are seen, powers of a base among them.
Half of what the visible pairs take is enough: beside an answer that leaves out masked pairs there
is one that computes scores now and outputs later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from labkit.grade.outcome import Finding, Outcome

# The place of the first matrix among the arguments of an operator; the second comes after it.
_PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "vdot": 0,
    "addmm": 1,
    "addmm_": 1,
    "baddbmm": 1,
    "baddbmm_": 1,
    "addbmm": 1,
    "addbmm_": 1,
    "addmv": 1,
    "addmv_": 1,
}
_EXPONENTIALS = {
    "exp",
    "exp_",
    "exp2",
    "exp2_",
    "expm1",
    "expm1_",
    "_softmax",
    "_log_softmax",
    "_safe_softmax",
    "logsumexp",
}
_ENOUGH = 0.5


@dataclass(frozen=True, slots=True)
class Work:
    """Of one operator, or of several together."""

    flops: int = 0
    """In products of matrices and vectors."""
    exponentials: int = 0

    def __str__(self) -> str:
        plural = "" if self.exponentials == 1 else "s"
        return f"{self.flops:,} FLOPs in products and {self.exponentials:,} exponential{plural}"


@dataclass(frozen=True, slots=True)
class Needed:
    """What attention takes, where `num_pairs` of a query and a key are seen in each head."""

    num_pairs: int
    heads: int
    features: int

    @property
    def flops(self) -> int:
        """For scores and for outputs."""
        return 4 * self.features * self.exponentials

    @property
    def exponentials(self) -> int:
        """One for each pair."""
        return self.num_pairs * self.heads

    def __str__(self) -> str:
        return str(Work(self.flops, self.exponentials))

    def has_products(self, work: Work) -> bool:
        """Whether that is enough of them."""
        return work.flops >= _ENOUGH * self.flops

    def has_exponentials(self, work: Work) -> bool:
        """Whether that is enough of them."""
        return work.exponentials >= _ENOUGH * self.exponentials


def work_of(name: str, args: Sequence[Any]) -> Work | None:
    """What the operator of that name will compute; None for one that does neither."""
    if name in _PRODUCTS:
        first, second = args[_PRODUCTS[name] :][:2]
        columns = second.shape[-1] if second.dim() > 1 else 1
        return Work(flops=2 * first.numel() * columns)
    if name in _EXPONENTIALS:
        return Work(exponentials=args[0].numel())
    if name == "pow" and isinstance(args[1], Tensor):  # of a base, and no square
        return Work(exponentials=args[1].numel())
    return None


def total(works: Iterable[Work]) -> Work:
    """Of all together."""
    flops = exponentials = 0
    for each in works:
        flops += each.flops
        exponentials += each.exponentials
    return Work(flops, exponentials)


def outside_of_torch(done: Work, needed: Needed, seen_in: str, reason: str) -> Finding:
    """The finding for less work than attention takes; reason: why it must be seen."""
    return Finding(
        Outcome.WRONG,
        "computes outside of torch",
        f"the values are right, and operators of torch have computed {done}, where attention over "
        f"what is seen takes {needed}: {reason}, and it cannot be seen. Use torch's operators",
        seen_in,
        hint=1,
    )
