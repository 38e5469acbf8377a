"""Units that write down their use: in which order, and whose weights are in memory meanwhile."""

import ctypes
import gc
import struct
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.grade.evidence import CaseEvidence
from labkit.grade.graders.live_storages import LiveStorages
from labkit.grade.graders.patience import Patience
from labkit.grade.graders.zero3_inputs import loss_gradient, unit_backward, unit_forward
from labkit.grade.harness import is_plain_tensor
from labkit.grade.watched_group import WatchedGroup

FORWARD, BACKWARD = 0, 1
USE = "\x02use"
"""A region that begins when a unit is used."""

OTHER_WEIGHTS = "passes other weights than the unit's own"
OTHER_INPUT = "gives backward another x than forward"
OTHER_OUTPUT = "gives backward another unit's gradient"
BEFORE_FORWARD = "goes backward before forward"
REFUSALS = (OTHER_WEIGHTS, OTHER_INPUT, OTHER_OUTPUT, BEFORE_FORWARD)
"""With these an error of a unit begins."""

_MARK = 8  # numbers: more than two tensors have in common by chance
_NUM_NOTED = 7  # of each use, on its way to the driver

Storages = list[weakref.ref[torch.UntypedStorage]]


@dataclass(frozen=True)
class Use:
    """One call of a unit's forward or backward, as the rank tells it."""

    kind: int
    unit: int
    num_weights: int
    """Weights of units in memory: these, and of earlier uses what has not been released."""
    num_found: int
    """Units whose weights lie somewhere in memory, as copies or as what was gathered."""
    num_gradients: int
    """Whole gradients that earlier uses have returned, and that are still there."""
    is_own_input: bool
    """Of backward: whether x is what forward got."""
    live_bytes: int
    """Of all storages that were made since the call began."""
    begun_s: float
    """On the clock of the journal."""


@dataclass(frozen=True)
class Seen:
    """What a rank tells of a case."""

    uses: list[Use]
    have_shards_changed: bool
    lost_shards: bool
    """Whether a unit has another tensor for its shard than before."""
    gradients: list[Tensor]
    """What was returned; empty where that is no list of tensors."""


class WatchedUnit:
    """A unit, as the code under test gets it."""

    def __init__(self, index: int, shard: Tensor, numel: int, diary: "Diary") -> None:
        self.shard, self.numel = shard, numel
        self._index, self._diary = index, diary
        self._input: int | None = None
        self._shapes: tuple[torch.Size, torch.Size] | None = None

    def forward(self, weights: Tensor, x: Tensor) -> Tensor:
        """Its output."""
        self._require_whole(weights)
        self._diary.note(FORWARD, self._index, weights)
        self._input = _fingerprint(x)
        y = unit_forward(weights, x)
        self._shapes = x.shape, y.shape
        return y

    def backward(self, weights: Tensor, x: Tensor, y_gradient: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of its input and of its weights."""
        self._require_whole(weights)
        self._require_shapes(x, y_gradient)
        is_own = _fingerprint(x) == self._input
        self._diary.note(BACKWARD, self._index, weights, is_own)
        found = unit_backward(weights, x, y_gradient)
        self._diary.gradients.append(weakref.ref(found[1].untyped_storage()))
        return found

    def _require_whole(self, weights: Tensor) -> None:
        if weights.shape != (self.numel,):
            raise ValueError(
                f"{OTHER_WEIGHTS}: unit {self._index} has {self.numel} parameters, and gets a "
                f"tensor of shape {tuple(weights.shape)}; it takes all of them, (numel,)"
            )

    def _require_shapes(self, x: Tensor, y_gradient: Tensor) -> None:
        if self._shapes is None:
            raise ValueError(f"{BEFORE_FORWARD}: unit {self._index} has not been forward yet")
        x_shape, y_shape = self._shapes
        if x.shape != x_shape:
            raise ValueError(
                f"{OTHER_INPUT}: unit {self._index}'s forward got x of shape {tuple(x_shape)}, and "
                f"backward gets {tuple(x.shape)}; it takes the unit's input"
            )
        if y_gradient.shape != y_shape:
            raise ValueError(
                f"{OTHER_OUTPUT}: unit {self._index}'s output has shape {tuple(y_shape)}, and its "
                f"gradient {tuple(y_gradient.shape)}; it comes from the unit behind"
            )


class Diary:
    """Uses of units, and what of them is still in memory."""

    def __init__(self, group: WatchedGroup, live: LiveStorages) -> None:
        self._group, self._live = group, live
        # One more than is in use may be meant to stay, and more may not: each has its own.
        self._with_one, self._with_more = Patience(), Patience()
        self._weights: Storages = []
        self._ends: dict[int, list[bytes]] = {}
        """By unit: how its weights begin, and how they end."""
        self.gradients: Storages = []
        self.uses: list[tuple[int, ...]] = []

    def note(self, kind: int, unit: int, weights: Tensor, is_own: bool = True) -> None:
        """One use begins."""
        with self._group.region(USE):
            gc.collect()  # nobody is to wait for what only circles hold
            mine = weights.untyped_storage()
            self._with_more.wait_while(lambda: self._most(mine) > 1)
            self._with_one.wait_while(lambda: self._most(mine) == 1)
            others, live_bytes = self._others(mine), self._live.nbytes
            num_gradients = self._num_gradients()
            self._weights.append(weakref.ref(mine))
            self._ends[unit] = [_bytes_of(weights[:_MARK]), _bytes_of(weights[-_MARK:])]
            num_found = self._num_found()
            row = (kind, unit, len(others) + 1, num_found, num_gradients, is_own, live_bytes)
            self.uses.append(row)

    def _others(self, mine: torch.UntypedStorage) -> set[int]:
        """Earlier uses' weights that are still in memory."""
        return {storage._cdata for storage in _alive(self._weights)} - {mine._cdata}

    def _num_gradients(self) -> int:
        return len({storage._cdata for storage in _alive(self.gradients)})

    def _most(self, mine: torch.UntypedStorage) -> int:
        return max(len(self._others(mine)), self._num_gradients())

    def _num_found(self) -> int:
        """Units that have been used, and of which both ends lie in one storage: no shard has."""
        found = set()
        for storage in self._live.storages():
            content = ctypes.string_at(storage.data_ptr(), storage.nbytes())
            found |= {i for i, ends in self._ends.items() if all(end in content for end in ends)}
        return len(found)


def watched(
    function: Callable[..., Any], arguments: tuple[Any, ...], group: WatchedGroup
) -> list[Tensor]:
    """Run on a rank: the call; uses, whether shards have changed, then what was returned."""
    shards, numels, x, target = arguments
    live = LiveStorages([x, target], group.gate)
    diary = Diary(group, live)
    pairs = enumerate(zip(shards, numels, strict=True))
    units = [WatchedUnit(i, shard.clone(), numel, diary) for i, (shard, numel) in pairs]
    own = [unit.shard for unit in units]
    with live:
        returned = function(units, x, lambda y: loss_gradient(y, target), group)
    has_changed = not all(torch.equal(a, b) for a, b in zip(own, shards, strict=True))
    has_lost = any(unit.shard is not shard for unit, shard in zip(units, own, strict=True))
    is_list = isinstance(returned, list | tuple) and all(map(is_plain_tensor, returned))
    uses = torch.tensor(diary.uses, dtype=torch.int64).view(-1, _NUM_NOTED)
    return [uses, torch.tensor([has_changed, has_lost]), *(returned if is_list else ())]


def seen_on(evidence: CaseEvidence) -> list[Seen]:
    """By rank, what `watched` has told, in the driver."""
    seen = []
    for record, regions in zip(evidence.completed, evidence.regions, strict=True):
        began_s = [each.start_s for each in regions if each.name == USE]
        rows: Sequence[Sequence[int]] = record.outputs[0].tolist()
        uses = [
            Use(kind, unit, weights, found, gradients, bool(is_own), live_bytes, when)
            for (kind, unit, weights, found, gradients, is_own, live_bytes), when in zip(
                rows, began_s, strict=True
            )
        ]
        has_changed, has_lost = record.outputs[1].tolist()
        seen.append(Seen(uses, has_changed, has_lost, record.outputs[2:]))
    return seen


def _fingerprint(x: Tensor) -> int:
    """Of its values; it takes no memory that would be counted."""
    return hash(tuple(x.detach().flatten().tolist()))


def _bytes_of(numbers: Tensor) -> bytes:
    return struct.pack(f"{numbers.numel()}d", *numbers.tolist())


def _alive(storages: Storages) -> list[torch.UntypedStorage]:
    found = (ref() for ref in storages)
    # FSDP itself releases by making a storage empty.
    return [storage for storage in found if storage is not None and storage.nbytes()]
