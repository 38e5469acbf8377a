"""Accumulation: which backward passes reduce, and which only add up.

    with model.no_sync():      forward, backward     gradients stay on their rank, and add up
    outside                    forward, backward     the sum is averaged: one all-reduce for all

The forward pass decides for the backward pass through it, as with torch's own.
Paper: Li et al., "PyTorch Distributed", arXiv:2006.15704, section 3.2.4.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from labkit.comm import Group
from labkit.data_parallel.replica import Replica


class Accumulating(Replica):
    """A replica that knows whether the next backward pass reduces: `is_syncing`."""

    def __init__(
        self, module: nn.Module, group: Group | None = None, *, broadcast_buffers: bool = True
    ) -> None:
        """See `Replica`."""
        super().__init__(module, group, broadcast_buffers=broadcast_buffers)
        self._will_sync = True
        self.is_syncing = True
        self.has_synced = True
        """Whether a backward pass has reduced since the last forward pass that asked for it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns. Wire: buffers, in training and outside of `no_sync`."""
        if torch.is_grad_enabled():
            # A forward pass without communication does not take back the promise of an earlier
            # one, whose backward pass is still to come.
            self.is_syncing = self._will_sync or (self.is_syncing and not self.has_synced)
            self.has_synced = self.has_synced and not self._will_sync
        return super().forward(*args, **kwargs)

    def _broadcast_buffers(self) -> None:
        if self._will_sync:
            super()._broadcast_buffers()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Forward passes in here have a backward pass without communication.

        Gradients add up on each rank, and the first pass outside averages the sum: accumulation
        over k microbatches for one all-reduce. The forward pass decides, as with torch's own.
        """
        before, self._will_sync = self._will_sync, False
        try:
            yield
        finally:
            self._will_sync = before
