"""Logits of a vocabulary that is split, the right loss of them, and the call on a rank.

Shapes: N positions, V tokens in the vocabulary, of which a rank has v.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.grade.evidence import Case
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup

_MAX_DELAY_S = 0.002
HIGH = 10_000.0
_SHIFTED = 1_000.0  # of one share over the others: exp of half of it is inf in float32


@dataclass(frozen=True)
class Given:
    """What the ranks of a case have together."""

    shares: list[Tensor]
    """By rank, logits_Nv, in the dtype that the ranks get."""
    targets_N: Tensor

    @cached_property
    def logits_NV(self) -> Tensor:
        """All of them, in float64."""
        return torch.cat(self.shares, 1).double()

    @property
    def firsts(self) -> list[int]:
        """By rank, the number of its first token."""
        sizes = [share.shape[1] for share in self.shares]
        return [sum(sizes[:rank]) for rank in range(len(sizes))]

    @property
    def share_numel(self) -> int:
        """Numbers in the largest share."""
        return max(share.numel() for share in self.shares)

    @property
    def hits_NV(self) -> Tensor:
        """1 at each position's target, and 0 elsewhere; float64."""
        return one_hot(self.targets_N, self.logits_NV.shape[1]).double()

    def on(self, rank: int, values_NV: Tensor) -> Tensor:
        """The rank's columns."""
        first = self.firsts[rank]
        return values_NV[:, first : first + self.shares[rank].shape[1]]

    def right(self) -> tuple[Tensor, list[Tensor]]:
        """The loss, and by rank the gradient, of one process in float64: the oracle."""
        log_NV = self.logits_NV.log_softmax(1)
        loss = -(log_NV * self.hits_NV).sum(1).mean()
        gradient_NV = (log_NV.exp() - self.hits_NV) / len(self.targets_N)
        return loss, [self.on(rank, gradient_NV) for rank in range(len(self.shares))]


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    has_form: bool
    """Whether two tensors came back, in a tuple or a list; else the two are empty."""
    largest_numel: int
    """Numbers in the largest tensor that was made meanwhile."""
    loss: Tensor
    gradient_Nv: Tensor


class LargestTensor(TorchDispatchMode):
    """Inside the block, the size of the largest tensor that any operator makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, the default, imports torch._dynamo: 3 seconds

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`, and measure what it returns."""
        result = func(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.layout is torch.strided:
                # Of the storage: an expanded tensor has more numbers than memory.
                in_memory = each.untyped_storage().nbytes() // each.element_size()
                self.numel = max(self.numel, min(each.numel(), in_memory))
        return result


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: the call; what was seen, then the loss and the gradient."""
    with LargestTensor() as largest:
        returned = function(*arguments, group)
    has_form = (
        isinstance(returned, tuple | list)
        and len(returned) == 2
        and all(map(is_plain_tensor, returned))
    )
    parts = list(returned) if has_form else [torch.empty(0), torch.empty(0)]
    return [torch.tensor([has_form, largest.numel]), *parts]


def seen_in(outputs: Sequence[Tensor]) -> Seen:
    """What `watched` has told, in the driver."""
    (has_form, largest_numel), loss, gradient_Nv = outputs[0].tolist(), *outputs[1:]
    return Seen(bool(has_form), largest_numel, loss, gradient_Nv)


def given_in(case: Case) -> Given:
    """What the grader has drawn."""
    return Given([share for share, _, _ in case.arguments], case.arguments[0][2])


def random_cases(world_size: int, rng: random.Random) -> list[Case]:
    """Plain logits, large ones of either sign, also in one batch, two dtypes, empty shares; in the
    last ones what a
    rank hands to a collective is changed."""
    n = world_size
    # Shares are longer than what several numbers of each rank take for a position.
    uneven = n * rng.randrange(20, 30) + (rng.randrange(1, n) if n > 1 else 0)
    even = n * rng.randrange(20, 30)
    few = max(1, n - 1)
    late = rng.randrange(n)
    plain = _case(f"{uneven} tokens", uneven, n, rng)
    cases = [
        plain,
        _case(f"{even} tokens, logits around 10,000", even, n, rng, above=HIGH),
        _case(f"{even} tokens, logits around -10,000", even, n, rng, above=-HIGH),
        _case(f"{uneven} tokens, one share above the others", uneven, n, rng, by_share=_SHIFTED),
        _case(f"{even} tokens, positions around 10,000 and -10,000", even, n, rng, by_turns=HIGH),
        _case(f"{uneven} tokens in bfloat16", uneven, n, rng, dtype=torch.bfloat16),
        replace(
            _case(f"{even} tokens in float16, rank {late} late", even, n, rng, dtype=torch.float16),
            delays_s=tuple(_MAX_DELAY_S * (rank == late) for rank in range(n)),
        ),
        _case(f"{few} token{'s' * (few > 1)}", few, n, rng),
    ]
    # All of three: whether the maximum is changed on its way, does not show in any result. And on
    # the rank with the first target: what another one gathers as its logit, may be ignored.
    given = given_in(plain)
    owner = max(rank for rank in range(n) if given.firsts[rank] <= given.targets_N[0])
    changed = [replace(plain, altered=(owner, number)) for number in (1, 2, 3)]
    return cases if n == 1 else [*cases, *changed]


def _case(
    label: str,
    num_tokens: int,
    world_size: int,
    rng: random.Random,
    *,
    above: float = 0.0,
    by_share: float = 0.0,
    by_turns: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Logits spread over a few units, around `above`; by_share: one share's, of each position, are
    higher by that; by_turns: a position's are higher by that, the next position's lower."""
    generator = torch.Generator().manual_seed(rng.getrandbits(63))
    targets_N = _targets(num_tokens, world_size, rng)
    logits_NV = above + 2 * torch.randn(len(targets_N), num_tokens, generator=generator)
    logits_NV[::2] += by_turns
    logits_NV[1::2] -= by_turns
    shares = logits_NV.tensor_split(world_size, 1)
    for position in range(len(targets_N)):
        shares[rng.randrange(world_size)][position] += by_share  # a view of all the logits
    arguments, first = [], 0
    for share in shares:
        arguments.append((share.to(dtype).contiguous(), first, targets_N))
        first += share.shape[1]
    return Case(label, tuple(arguments), (0.0,) * world_size)


def _targets(num_tokens: int, world_size: int, rng: random.Random) -> Tensor:
    """The ends of every share, where a number that is off by one shows, and others; shuffled."""
    shares = torch.arange(num_tokens).tensor_split(world_size)
    ends = [int(share[place]) for share in shares if len(share) for place in (0, -1)]
    others = [rng.randrange(num_tokens) for _ in range(rng.randrange(2, 5))]
    return torch.tensor(rng.sample([*ends, *others], len(ends) + len(others)))
