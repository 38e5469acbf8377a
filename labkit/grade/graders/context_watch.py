"""What a rank computes while blocks travel: when, how much, and what is in memory then.

On the rank, around the code under test; nothing here judges.
"""

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.attention_rules import AttentionStorages, OwnAttention
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup, WatchedPending

COMPUTES = "\x02computes"
"""A region that begins when a product of matrices does, or an exponential."""

# The place of the first matrix among the arguments of an operator.
_PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addbmm": 1,
    "addmv": 1,
}
_EXPONENTIALS = {"exp", "exp_", "exp2", "_softmax", "_safe_softmax", "logsumexp"}


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    peak_bytes: int
    """Of all storages that were made meanwhile."""
    received_bytes: int
    """Of the memory that was ever given to a receive and was there as something was computed."""
    flops: int
    """In products of matrices."""
    o: Tensor


class Told(list[Tensor]):
    """What was seen; told apart by its type from whatever the code under test returns."""


class ReceivingGroup:
    """A watched group that knows into which memory messages were received."""

    def __init__(self, group: WatchedGroup) -> None:
        self.rank, self.size, self.gate = group.rank, group.size, group.gate
        self._group = group
        self._buffers: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def isend(self, x: Tensor, dst: int) -> WatchedPending:
        """As the group's; what it copies to see changes is not the learner's memory."""
        with self.gate.opened():
            return self._group.isend(x, dst)

    def irecv(self, buffer: Tensor, src: int) -> WatchedPending:
        """As the group's."""
        self._note(buffer)
        with self.gate.opened():
            return self._group.irecv(buffer, src)

    def recv(self, buffer: Tensor, src: int) -> Tensor:
        """As the group's."""
        self._note(buffer)
        return self._group.recv(buffer, src)

    @property
    def received_bytes(self) -> int:
        """Of the memory that is still there."""
        alive = (ref() for ref in list(self._buffers.values()))
        return sum(storage.nbytes() for storage in alive if storage is not None)

    def _note(self, buffer: Tensor) -> None:
        if is_plain_tensor(buffer):
            storage = buffer.untyped_storage()
            key = storage._cdata
            gone = self._buffers.pop
            self._buffers[key] = weakref.ref(storage, lambda _: gone(key, None))


class ComputedStorages(AttentionStorages):
    """AttentionStorages that note when something is computed."""

    def __init__(self, group: ReceivingGroup, known: Sequence[Tensor], most_bytes: int) -> None:
        """most_bytes: where more has been received, circles may hold it."""
        super().__init__(group.gate, known=known)
        self._group, self._most_bytes = group, most_bytes
        self.flops = self.received_bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`; note it where it computes."""
        name = func.overloadpacket.__name__
        if name in _PRODUCTS or name in _EXPONENTIALS:
            with self._group.region(COMPUTES):
                self._look()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if name in _PRODUCTS:
            self.flops += 2 * result.numel() * args[_PRODUCTS[name]].shape[-1]
        return result

    def _look(self) -> None:
        if self._group.received_bytes > self._most_bytes:
            gc.collect()
        self.received_bytes = max(self.received_bytes, self._group.received_bytes)


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> object:
    """Run on a rank: the call, and what was seen; where no tensor comes back: that."""
    q, k, v, num_tokens = arguments
    receiving = ReceivingGroup(group)
    live = ComputedStorages(receiving, [q, k, v], 2 * (k.nbytes + v.nbytes))
    with live, OwnAttention(group.gate):
        returned = function(q, k, v, num_tokens, receiving)
    if not is_plain_tensor(returned):
        return returned
    return Told([torch.tensor([live.peak_bytes, live.received_bytes, live.flops]), returned])


def seen_on(evidence: CaseEvidence) -> list[Seen]:
    """By rank, what `watched` has told, in the driver."""
    seen = []
    for record in evidence.completed:
        peak_bytes, received_bytes, flops = record.outputs[0].tolist()
        seen.append(Seen(peak_bytes, received_bytes, flops, record.outputs[1]))
    return seen


def computed_s(evidence: CaseEvidence, rank: int) -> list[float]:
    """When something was computed, on the clock of the journal."""
    return [each.start_s for each in evidence.regions[rank] if each.name == COMPUTES]
