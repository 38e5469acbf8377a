"""Activation layouts: how the ranks of a group hold features between layers, and get them there.

Inside a layer every rank needs all tokens (`whole`), and computes a part of the sum that the layer
returns (partial sums, to be `summed`). Between layers features have one of two layouts:

                    whole                     summed                    a rank holds
    Replicated      nothing to do             all-reduce                x_BTD
    SequenceSharded all-gather                reduce-scatter            x_nD: its tokens, N/n rows

`whole` and `summed` are adjoint: the backward of each is the other. `enter` is a layer's way in
(Megatron's f: forward `whole`, backward `summed`), `leave` its way out (g: forward `summed`,
backward `whole`), so that the same two methods say all four collectives of a layer.

The convention: one loss, which every rank computes equally from what all hold (see
labkit.collectives.autograd for the other one, and what goes wrong where the two are mixed).
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
"""Waits for what was started, and returns its result."""


class ActivationLayout(Protocol):
    """The way in which a group's ranks hold features between layers."""

    group: Group

    def whole(self, x: Tensor) -> Finish:
        """Start to make all tokens of `x`."""

    def summed(self, partial: Tensor) -> Finish:
        """Start to add up the ranks' partial sums of all tokens; `partial` is used up."""


class Replicated:
    """Every rank holds all of x, of any shape: tensor parallelism as Megatron-LM began it.

    Wire: `whole` nothing, `summed` 2(n-1)/n of x's bytes.
    """

    def __init__(self, group: Group | None, backend: CollectiveBackend | None = None) -> None:
        """`group`: None for torch.distributed's default one."""
        self.group = chosen(group)
        self._backend = chosen_backend(backend, self.group)

    def whole(self, x: Tensor) -> Finish:
        """Return x itself."""
        return lambda: x

    def summed(self, partial: Tensor) -> Finish:
        """Return an all-reduce."""
        return self._backend.all_reduce(partial.contiguous(), self.group).wait


class SequenceSharded:
    """Rank r holds rows r*k to (r+1)*k - 1 of the N = B*T tokens: sequence parallelism.

    What works token by token (norms, the residual sum) then does an nth of the work on an nth of
    the memory; it does not matter which tokens are whose. Where n does not divide N, rows of zeros
    fill up the last shards, k = ceil(N/n), and `whole` leaves them out. Dropout, which this lab's
    GPT has not, would need random numbers of each rank's own here, and the same ones on all ranks
    where features are replicated.
    Wire: `whole` and `summed` (n-1)/n of x's bytes each.
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
        """k: of each rank."""
        return -(-self.num_sequences * self.num_tokens // self.group.size)

    @property
    def rows(self) -> range:
        """This rank's tokens, by their numbers among all B*T; without those that fill up."""
        first, total = self.group.rank * self.num_rows, self.num_sequences * self.num_tokens
        return range(min(first, total), min(first + self.num_rows, total))

    def whole(self, x: Tensor) -> Finish:
        """Gather x_nD to x_BTD by an all-gather. ValueError for another number of rows than k."""
        if x.dim() != 2 or len(x) != self.num_rows:
            raise ValueError(
                f"sequence-sharded features of shape {tuple(x.shape)}, but {self._tokens} on "
                f"{self.group.size} ranks are {self.num_rows} rows each; give ({self.num_rows}, D)"
            )
        gathered = self._backend.all_gather(x.contiguous(), self.group)
        total = self.num_sequences * self.num_tokens
        shape = (self.num_sequences, self.num_tokens)
        return lambda: gathered.wait()[:total].unflatten(0, shape)

    def summed(self, partial: Tensor) -> Finish:
        """Partial sums x_BTD -> this rank's rows x_nD of their sum, by a reduce-scatter.

        ValueError for other tokens than B x T.
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


def enter(x: Tensor, layout: ActivationLayout) -> Tensor:
    """Return a layer's way in: all tokens. Backward adds up what the ranks say of them."""
    return _Enter.apply(x, layout)


def leave(partial: Tensor, layout: ActivationLayout) -> Tensor:
    """Return a layer's way out: the sum of the ranks' parts. Backward hands every rank all tokens.

    A part of a sum has the derivative of the sum: for Replicated, backward does nothing.
    """
    return _Leave.apply(partial, layout)


# `summed` uses up what it gets, and neither a caller's tensor nor a gradient is ours: copies.


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: ActivationLayout) -> Tensor:
        ctx.layout = layout
        return layout.whole(x)()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.summed(grad.clone())(), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, layout: ActivationLayout) -> Tensor:
        ctx.layout = layout
        return layout.summed(partial.clone())()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.layout.whole(grad)(), None
