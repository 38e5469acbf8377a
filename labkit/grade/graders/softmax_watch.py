"""Blocks that are given one by one, and what of them stays in memory.

On the rank, around the code under test; nothing here judges.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from labkit.grade.exact import is_same
from labkit.grade.gate import Gate
from labkit.grade.graders.attention_rules import AttentionStorages, OwnAttention
from labkit.grade.graders.attention_work import Work, total, work_of
from labkit.grade.graders.softmax_inputs import Block
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    peak_bytes: int
    """Of all storages that were made meanwhile, blocks included."""
    kept_bytes: int
    """Of those that are there as the last block has been."""
    most_blocks: int
    """In memory together."""
    num_after_end: int
    """Times that a block was asked for when there was none left."""
    has_changed_blocks: bool
    work: Work
    """Of torch's operators."""
    o: Tensor
    lse: Tensor


class Told(list[Tensor]):
    """What was seen; told apart by its type from whatever the code under test returns."""


class CountedStorages(AttentionStorages):
    """AttentionStorages that add up what is computed."""

    def __init__(self, gate: Gate, known: Sequence[Tensor]) -> None:
        super().__init__(gate, known=known)
        self.work = Work()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`, and count it."""
        self.work = total([self.work, work_of(func.overloadpacket.__name__, args) or Work()])
        return super().__torch_dispatch__(func, types, args, kwargs)


class Blocks(Iterator[Block]):
    """Copies of blocks, each once; of those that were given before, only weak references stay."""

    def __init__(self, blocks: Sequence[Block], live: AttentionStorages) -> None:
        self._blocks, self._live = blocks, live
        self._given: list[list[weakref.ref[torch.UntypedStorage]]] = []
        self._last: Block | None = None
        self.most_blocks = self.num_after_end = self.kept_bytes = 0
        self.has_changed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Block:
        self.look()
        if self.num_given == len(self._blocks):
            self.num_after_end += 1
            self.kept_bytes = max(self.kept_bytes, self._live.nbytes)
            raise StopIteration
        k, v, mask = self._blocks[self.num_given]
        self._last = k.clone(), v.clone(), mask.clone()
        self._given.append([weakref.ref(each.untyped_storage()) for each in self._last])
        self.most_blocks = max(self.most_blocks, self._num_alive())
        return self._last

    @property
    def num_given(self) -> int:
        """So far."""
        return len(self._given)

    def look(self) -> None:
        """Whether the last block is what it was; from here on it lives with the learner only."""
        if self._last is not None:
            pairs = zip(self._last, self._blocks[self.num_given - 1], strict=True)
            self.has_changed |= not all(is_same(now, before) for now, before in pairs)
        self._last = None

    def _num_alive(self) -> int:
        """Blocks of which the keys or the values are still there; what circles hold is not."""
        _ = self._live.nbytes
        return sum(any(ref() is not None for ref in each[:2]) for each in self._given)


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> object:
    """Run on a rank: the call, and what was seen; where no pair of tensors comes back: that."""
    q, blocks, scale = arguments
    live = CountedStorages(group.gate, [q, *(x for block in blocks for x in block)])
    with live, group.gate.watching(OwnAttention(group.gate)):
        source = Blocks([(k, v, mask) for k, v, mask in blocks], live)
        returned = function(q, source, scale)
        source.look()
    is_pair = isinstance(returned, tuple | list) and len(returned) == 2
    if not is_pair or not all(map(is_plain_tensor, returned)):
        return returned
    numbers = (
        live.peak_bytes,
        source.kept_bytes,
        source.most_blocks,
        source.num_after_end,
        source.has_changed,
        live.work.flops,
        live.work.exponentials,
    )
    return Told([torch.tensor(numbers), *returned])


def seen_in(outputs: Sequence[Tensor]) -> Seen:
    """What `watched` has told, in the driver."""
    numbers, o, lse = outputs
    peak, kept, most, after_end, has_changed, *work = numbers.tolist()
    return Seen(peak, kept, most, after_end, bool(has_changed), Work(*work), o, lse)
