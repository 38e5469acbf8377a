"""Activation layouts: how the ranks of a group hold features between layers.

It adds to plain.py: f and g for either of two layouts, so that features between layers can also be
sharded by sequence. A layer needs all tokens on every rank (`gather`). Each rank computes a partial
sum of the layer's result, and the layer adds up the partial sums (`reduce`). The layouts:

                    gather                    reduce                    a rank holds
    Replicated      nothing to do             all-reduce                x_BTD
    SequenceSharded all-gather                reduce-scatter            x_nD: its tokens, N/n rows

`gather` and `reduce` are adjoint: the backward of each is the other. `enter_parallel_region` begins
a layer (Megatron's f: forward `gather`, backward `reduce`). `leave_parallel_region` ends it (g:
forward `reduce`, backward `gather`). So two methods define all four collectives of a layer.

Here every rank computes the same loss from replicated values. labkit.collectives.autograd has the
other convention, and explains the error of mixing the two.
Papers: Megatron-LM, arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section 4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.collectives.backend import CollectiveBackend, chosen_backend, first_order_only
from labkit.comm import Group
from labkit.comm.group import chosen

Finish = Callable[[], Tensor]
"""Waits for a collective that was started, and returns its result."""


class ActivationLayout(Protocol):
    """How a group's ranks hold features between layers."""

    group: Group

    def gather(self, x: Tensor) -> Finish:
        """Start to gather the features of all tokens from `x`."""

    def reduce(self, partial: Tensor) -> Finish:
        """Start to add up the ranks' partial sums of all tokens; `partial` may be overwritten."""


class Replicated:
    """Every rank holds all of x, of any shape, as in the first Megatron-LM.

    Wire: `gather` nothing, `reduce` 2(n-1)/n of x's bytes.
    """

    def __init__(self, group: Group | None, backend: CollectiveBackend | None = None) -> None:
        """`group`: None for torch.distributed's default one."""
        self.group = chosen(group)
        self._backend = chosen_backend(backend, self.group)

    def gather(self, x: Tensor) -> Finish:
        """Return x itself."""
        return lambda: x

    def reduce(self, partial: Tensor) -> Finish:
        """Start an all-reduce of the partial sums."""
        return self._backend.all_reduce(partial.contiguous(), self.group).wait


class SequenceSharded:
    """Rank r holds rows r*k to (r+1)*k - 1 of the N = B*T tokens: sequence parallelism.

    Operations on single tokens (norms, the residual sum) then need 1/n of the work and memory. If n
    does not divide N, k is ceil(N/n), rows of zeros pad the last shards, and `gather` drops them.
    Dropout, which the lab's GPT does not have, would need random numbers that differ by rank here,
    and the same numbers on all ranks where features are replicated.
    Wire: `gather` and `reduce` (n-1)/n of x's bytes each.
    """

    def __init__(
        self,
        group: Group | None,
        num_sequences: int,
        num_tokens: int,
        backend: CollectiveBackend | None = None,
    ) -> None:
        """`group`: None for torch.distributed's default one. num_sequences: B. num_tokens: T."""
        self.group = chosen(group)
        self._backend = chosen_backend(backend, self.group)
        self.num_sequences, self.num_tokens = num_sequences, num_tokens

    @property
    def _tokens(self) -> str:
        return f"{self.num_sequences} x {self.num_tokens} tokens"

    @property
    def num_rows(self) -> int:
        """k, the number of rows of each rank, with padding."""
        return -(-self.num_sequences * self.num_tokens // self.group.size)

    @property
    def rows(self) -> range:
        """This rank's tokens, by their numbers among all B*T, without padding."""
        first, total = self.group.rank * self.num_rows, self.num_sequences * self.num_tokens
        return range(min(first, total), min(first + self.num_rows, total))

    def gather(self, x: Tensor) -> Finish:
        """Start an all-gather of x_nD to x_BTD. ValueError unless x has k rows."""
        if x.dim() != 2 or len(x) != self.num_rows:
            raise ValueError(
                f"sequence-sharded features of shape {tuple(x.shape)}, but {self._tokens} on "
                f"{self.group.size} ranks are {self.num_rows} rows each; give ({self.num_rows}, D)"
            )
        gathered = self._backend.all_gather(x.contiguous(), self.group)
        total = self.num_sequences * self.num_tokens
        shape = (self.num_sequences, self.num_tokens)
        return lambda: gathered.wait()[:total].unflatten(0, shape)

    def reduce(self, partial: Tensor) -> Finish:
        """Start a reduce-scatter of partial sums x_BTD to this rank's rows x_nD of their sum.

        ValueError unless the first dims are B and T.
        """
        if partial.dim() != 3 or partial.shape[:2] != (self.num_sequences, self.num_tokens):
            raise ValueError(
                f"partial sums of shape {tuple(partial.shape)}, but these shards are of "
                f"{self._tokens}; give ({self.num_sequences}, {self.num_tokens}, D)"
            )
        rows = partial.flatten(0, 1)
        num_missing = self.num_rows * self.group.size - len(rows)
        filled = F.pad(rows, (0, 0, 0, num_missing)) if num_missing else rows.contiguous()
        return self._backend.reduce_scatter(filled, self.group).wait


def enter_parallel_region(x: Tensor, layout: ActivationLayout) -> Tensor:
    """Begin a layer: return all tokens. Backward sums the tokens' gradients over the ranks."""
    return _EnterParallelRegion.apply(x, layout)


def leave_parallel_region(partial: Tensor, layout: ActivationLayout) -> Tensor:
    """End a layer: return the sum of the ranks' parts. Backward gathers the gradient of all tokens.

    The gradient of each part is that of the sum, so for Replicated backward sends nothing.
    """
    return _LeaveParallelRegion.apply(partial, layout)


# `reduce` may overwrite its argument, so the functions below copy the caller's tensor or gradient.


class _EnterParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: ActivationLayout) -> Tensor:
        ctx.layout = layout
        return layout.gather(x)()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.reduce(grad.clone())(), None


class _LeaveParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, layout: ActivationLayout) -> Tensor:
        ctx.layout = layout
        return layout.reduce(partial.clone())()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.gather(grad)(), None
