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
from labkit.grade.graders.attention_work import Work, work_of
from labkit.grade.graders.patience import Patience
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup, WatchedPending

COMPUTES = "\x02computes"
"""A region that begins when a product of matrices does, or an exponential. How much it computes is
in its name: `computes 1200 0`, FLOPs and exponentials."""


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    peak_bytes: int
    """Of all storages that were made meanwhile."""
    received_bytes: int
    """Of the memory that was ever given to a receive and was there as something was computed."""
    o: Tensor


@dataclass(frozen=True, slots=True)
class Computed:
    """An operator of a rank's that is a product of matrices, or takes exponentials."""

    begin_s: float
    """On the clock of the journal."""
    work: Work


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
        self._group, self._most_bytes, self._patience = group, most_bytes, Patience()
        self.received_bytes = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`; note it where it computes."""
        work = work_of(func.overloadpacket.__name__, args)
        if work is not None:
            with self._group.region(f"{COMPUTES} {work.flops} {work.exponentials}"):
                self._look()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _look(self) -> None:
        if self._group.received_bytes > self._most_bytes:
            gc.collect()
            self._patience.wait_while(lambda: self._group.received_bytes > self._most_bytes)
        self.received_bytes = max(self.received_bytes, self._group.received_bytes)


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> object:
    """Run on a rank: the call, and what was seen; where no tensor comes back: that."""
    q, k, v, num_tokens = arguments
    receiving = ReceivingGroup(group)
    live = ComputedStorages(receiving, [q, k, v], 2 * (k.nbytes + v.nbytes))
    with live, group.gate.watching(OwnAttention(group.gate)):
        returned = function(q, k, v, num_tokens, receiving)
    if not is_plain_tensor(returned):
        return returned
    return Told([torch.tensor([live.peak_bytes, live.received_bytes]), returned])


def seen_on(evidence: CaseEvidence) -> list[Seen]:
    """By rank, what `watched` has told, in the driver."""
    seen = []
    for record in evidence.completed:
        peak_bytes, received_bytes = record.outputs[0].tolist()
        seen.append(Seen(peak_bytes, received_bytes, record.outputs[1]))
    return seen


def computed_on(evidence: CaseEvidence, rank: int) -> list[Computed]:
    """What a rank has computed in a case, in order."""
    computed = []
    for each in evidence.regions[rank]:
        if each.name.startswith(f"{COMPUTES} "):
            flops, exponentials = map(int, each.name.split()[1:])
            computed.append(Computed(each.start_s, Work(flops, exponentials)))
    return computed
