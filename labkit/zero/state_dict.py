"""The state of a sharded optimizer: in shards by rank, or whole.

    sharded    rank 0: elements 0..k-1 of each state, rank 1: k..2k-1, ...      written in parallel
    whole      the same as that of torch's optimizer in one process             by parameter number

`merged` makes a whole state from the parts of all ranks. `part_of` cuts a whole state for any
number of ranks. Elements are in the order of a parameter's memory.
"""

from __future__ import annotations

import ctypes
import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.comm import Group

State = dict[str, Any]
_ONE_MOMENT = "give parts that were saved at one moment of one run"


def is_sharded(state: Mapping[str, Any]) -> bool:
    """Return whether `state` is one rank's part. TypeError for anything but a state."""
    if not isinstance(state, Mapping) or not {"state", "param_groups"} <= state.keys():
        raise TypeError(
            f"{state!r:.60}: give the result of state_dict() or full_state_dict() of a sharded "
            "optimizer, or of state_dict() of torch's own"
        )
    return "rank" in state


def merged(shards: Sequence[Mapping[str, Any]]) -> State:
    """Merge the states of all ranks, in any order, into the whole state.

    ValueError if a rank's part is missing, or if parts are of different runs or steps.
    """
    shards = [shard for shard in shards if is_sharded(shard)]
    by_rank = {shard["rank"]: shard for shard in shards}
    sizes = {shard["world_size"] for shard in shards}
    if len(sizes) != 1 or sorted(shard["rank"] for shard in shards) != list(range(*sizes)):
        raise ValueError(
            f"parts of ranks {sorted(shard['rank'] for shard in shards)} of {sorted(sizes)}: give "
            "one part of every rank of one run"
        )
    for rank, shard in by_rank.items():
        if not _is_same(shard["param_groups"], by_rank[0]["param_groups"]):
            raise ValueError(f"settings of rank {rank} differ from rank 0's: {_ONE_MOMENT}")
    fragments: dict[int, list[Mapping[str, Any]]] = {}
    for rank in sorted(by_rank):
        for number, fragment in by_rank[rank]["state"].items():
            fragments.setdefault(number, []).append(fragment)
    for number, parts in fragments.items():
        if any(not _is_same(_in_common(part), _in_common(parts[0])) for part in parts):
            raise ValueError(f"parts of parameter {number} are of several steps: {_ONE_MOMENT}")
    whole = {number: _joined(fragments[number]) for number in sorted(fragments)}
    return {"state": whole, "param_groups": by_rank[0]["param_groups"]}


def _joined(fragments: Sequence[Mapping[str, Any]]) -> State:
    """Return one parameter's state from its fragments, in order."""
    first = fragments[0]
    if first["is_whole"]:
        return dict(first["values"])
    joined = {}
    for name, value in first["values"].items():
        if _is_by_element(value, first):
            row = torch.cat([fragment["values"][name] for fragment in fragments])
            value = row.as_strided(first["shape"], first["stride"])
        joined[name] = value
    return joined


def part_of(whole: Mapping[str, Any], number: int, fragment: Mapping[str, Any]) -> State:
    """Cut a fragment's state out of the whole state of parameter `number`; {} if it has none.

    fragment: its place, as in a sharded state. ValueError for a state of another shape.
    """
    values = whole["state"].get(number, {})
    if fragment["is_whole"]:
        return {name: copied(value) for name, value in values.items()}
    part = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.dim() and tuple(value.shape) != fragment["shape"]:
            raise ValueError(
                f"{name} of parameter {number} has shape {tuple(value.shape)}, and the parameter "
                f"has {fragment['shape']}: this state belongs to another model"
            )
        if (
            isinstance(value, Tensor)
            and tuple(value.shape) == fragment["shape"]
            and value.numel() > 0
        ):
            # A parameter without dims has states without dims, per element except `step`.
            is_scalar = not fragment["shape"] and name == "step"
            value = (
                value if is_scalar else _row(value, fragment)[fragment["start"] : fragment["stop"]]
            )
        part[name] = copied(value)
    return part


def gathered(state: State, group: Group, root: int) -> list[State] | None:
    """Gather the states of all ranks on rank `root`; return None on the others.

    Wire: the serialized states to the root, each padded to the length of the longest.
    """
    file = io.BytesIO()
    torch.save(state, file)
    data = torch.frombuffer(bytearray(file.getbuffer()), dtype=torch.uint8).to(group.device)
    lengths = group.all_gather(torch.tensor([len(data)], device=group.device)).tolist()
    padded = data.new_zeros(max(lengths))
    padded[: len(data)] = data
    rows = group.gather(padded[None], root)
    if rows is None:
        return None
    return [_loaded(row[:length].cpu()) for row, length in zip(rows, lengths, strict=True)]


def _loaded(data: Tensor) -> State:
    file = io.BytesIO(ctypes.string_at(data.data_ptr(), len(data)))  # numpy may not be installed
    state: State = torch.load(file, weights_only=True)
    return state


def _is_by_element(value: Any, fragment: Mapping[str, Any]) -> bool:
    length = fragment["stop"] - fragment["start"]
    return isinstance(value, Tensor) and value.dim() == 1 and len(value) == length


def _in_common(fragment: Mapping[str, Any]) -> State:
    """Return the values that all fragments of a parameter share, such as the number of steps."""
    values = fragment["values"].items()
    return {name: None if _is_by_element(value, fragment) else value for name, value in values}


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        both = isinstance(one, Tensor) and isinstance(other, Tensor)
        return both and torch.equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _row(value: Tensor, fragment: Mapping[str, Any]) -> Tensor:
    """Return the value's elements in the order of the parameter's memory, as in fragments."""
    row = value.new_empty(value.numel())
    row.as_strided(fragment["shape"], fragment["stride"]).copy_(value)
    return row


def copied(value: Any) -> Any:
    """Return a copy of a tensor, and anything else unchanged."""
    return value.clone() if isinstance(value, Tensor) else value
