"""How many tensors of all rows are in memory at once, for sequence_parallel_norm."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.grade.gate import Gate
from labkit.grade.graders.live_storages import LiveStorages
from labkit.grade.graders.shard_wire import shard_numel

MOST_LONG = 2
"""Tensors of all rows that may be there at once: what travels, and what arrives."""

# Of all rows: from 0.75 on a tensor is one of all rows. Where a rank's own rows, which are an nth,
# rounded up, are not well below, the two cannot be told apart, and nothing is counted.
_LONG, _WELL_BELOW = 0.75, 0.6
_PATIENCE_S, _PAUSE_S = 0.5, 0.001


def long_bytes_of(z_ND: Tensor, num_ranks: int) -> float:
    """From how many bytes on a tensor counts as one of all rows; infinite where none does."""
    own_rows = shard_numel(len(z_ND), num_ranks)
    return _LONG * z_ND.nbytes if own_rows <= _WELL_BELOW * len(z_ND) else math.inf


class LongTensors(LiveStorages):
    """Counts storages of `long_bytes` or more, as many as are alive at once."""

    def __init__(self, known: Iterable[Tensor], gate: Gate, long_bytes: float) -> None:
        """known: not counted. A backend's thread may hold on to a tensor for a moment longer:
        where there are more than there may be, that is waited for."""
        super().__init__(known, gate)
        self._long_bytes, self._left_s = long_bytes, _PATIENCE_S
        self.most = 0

    def settled(self, count: Callable[[], int], most: int) -> int:
        """`count()`, once nobody but the code under test holds more than `most`."""
        while (found := count()) > most and self._left_s > 0:
            time.sleep(_PAUSE_S)
            self._left_s -= _PAUSE_S
        return found

    def alive(self) -> list[torch.UntypedStorage]:
        """Those that are there now."""
        return [each for each in self.storages() if each.nbytes() >= self._long_bytes]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """As LiveStorages, and then count."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        num_alive = self.settled(lambda: len(self.alive()), MOST_LONG)
        self.most = max(self.most, num_alive)
        return result
