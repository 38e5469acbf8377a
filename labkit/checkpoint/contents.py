"""A rank's part of a checkpoint: each strategy's tensors as shards of whole, named tensors.

    a rank holds                    its shard of `blocks.0.attention.output.weight` (64, 64)
    serial, DDP, pipeline           the whole tensor, on one rank or on several
    tensor parallelism              rows 0-31, a box
    ZeRO-3                          elements 1024 to 2047, a range
    ZeRO-1 and tensor parallelism   the whole box of the parameter; of each optimizer state a range

The whole tensors are those of the serial model, with its names. A layout is only a way to cut them,
so a checkpoint of one layout loads into any other.

    model.NAME                 parameters, and persistent buffers
    optimizer.NAME.STATE       the optimizer's states of a parameter: exp_avg, step, master
    rng.RANK.torch, .python    the random state of each rank
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checkpoint.plain_data import memory_of
from labkit.checkpoint.torch_optimizer_states import KERNEL_SETTINGS as KERNEL_SETTINGS
from labkit.checkpoint.torch_optimizer_states import state_names
from labkit.optimizer import AdamState, AdamW, OwnedFragment, fragments_of, load_fragments
from labkit.shards import Extent, Kind, NamedShard, named_shards, require_rows

Values = dict[str, Any]


@dataclass(frozen=True, eq=False)
class ParameterState:
    """An optimizer's state for the elements of one parameter that it updates on this rank."""

    parameter: str
    extent: Extent
    target: Tensor
    """The tensor that it updates: the parameter, this rank's shard of it, or a master of either."""
    values: Values


class Contents:
    """A rank's model and optimizer as shards, for saving and loading."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        """model: plain, or of any strategy. optimizer: of its parameters, or None.

        TypeError for an optimizer whose parameters are not the model's.
        """
        self._model, self.optimizer = model, optimizer
        self._inner = getattr(optimizer, "optimizer", optimizer)  # MasterWeights wraps one
        self.states()

    def tensors(self) -> list[NamedShard]:
        """This rank's shards of the model's parameters and buffers, as they are now."""
        return [replace(each, name=f"model.{each.name}") for each in named_shards(self._model)]

    def shards(self) -> list[NamedShard]:
        """This rank's shards of model and optimizer, which has no states before its first step."""
        of_states = [
            _shard_of_state(state, key, value)
            for state in self.states()
            if state.extent.numel or not math.prod(state.extent.shape)
            for key, value in state.values.items()
        ]
        return [*self.tensors(), *of_states]

    def states(self) -> list[ParameterState]:
        """Return the optimizer's states, one for each tensor that it updates, in its order."""
        by_id = {id(shard.tensor): shard for shard in named_shards(self._model)}
        owned = [] if self.optimizer is None else fragments_of(self.optimizer)
        return [_state_of(fragment, by_id) for fragment in owned]

    def load_states(self, states: Sequence[Values]) -> None:
        """Give the optimizer these states, in the order of `states`. They are not copied."""
        if self.optimizer is not None:
            load_fragments(self.optimizer, states)

    def settings(self) -> list[Values]:
        """Return the optimizer's settings by group, such as the current learning rate."""
        return [
            {key: value for key, value in group.items() if key in _keys_of_settings(group)}
            for group in _groups_of(self._inner)
        ]

    def has_same_groups(self, settings: Sequence[Values]) -> bool:
        """Return whether there are as many parameter groups, or one side has no optimizer."""
        groups = _groups_of(self._inner)
        return not groups or not settings or len(groups) == len(settings)

    def mismatched_setting(self, settings: Sequence[Values]) -> str:
        """Return a saved setting that this optimizer cannot have, with both values; "" for none."""
        for group, saved in zip(_groups_of(self._inner), settings):
            for key in sorted(_keys_of_settings(group) & saved.keys()):
                if not _is_of_kind(group[key], saved[key]):
                    return f"{key}={saved[key]!r:.80}, and this optimizer has {key}={group[key]!r}"
        return ""

    def load_settings(self, settings: Sequence[Values]) -> None:
        """Give the optimizer these settings, group by group."""
        for group, saved in zip(_groups_of(self._inner), settings):
            for key in _keys_of_settings(group) & saved.keys():
                is_tuple = isinstance(group[key], tuple)
                group[key] = tuple(saved[key]) if is_tuple else saved[key]

    @property
    def optimizer_name(self) -> str | None:
        """Module and class of the optimizer that makes the states; None without one."""
        inner, kind = self._inner, type(self._inner)
        own = None if inner is None else f"{kind.__module__}.{kind.__qualname__}"
        return getattr(inner, "optimizer_name", own)

    @property
    def required_states(self) -> frozenset[str]:
        """Names of the states that the optimizer needs for its next step, if they are known.

        A parameter has none of them before its first step, and all of them afterwards.
        """
        if isinstance(self._inner, AdamW):
            return frozenset(field.name for field in fields(AdamState))
        name = self.optimizer_name or ""
        kind = vars(torch.optim).get(name.rpartition(".")[2])
        kept = state_names(kind) if name.startswith("torch.optim.") and kind else None
        return kept.states if kept else frozenset()

    @property
    def has_steps_on_device(self) -> bool:
        """Return whether torch's optimizer keeps its number of steps where the parameters are."""
        groups = _groups_of(self._inner)
        return any(group.get("fused") or group.get("capturable") for group in groups)


def _state_of(fragment: OwnedFragment, by_id: Mapping[int, NamedShard]) -> ParameterState:
    parameter, start, stop, target, values = fragment
    shard = by_id.get(id(parameter))
    if shard is None:
        raise TypeError(
            f"the optimizer updates a tensor of shape {tuple(parameter.shape)} that is no "
            "parameter of this model: give the model and the optimizer that belong together"
        )
    if target.shape != parameter.shape:
        require_rows(shard.name, parameter)
    return ParameterState(shard.name, shard.extent.within(start, stop), target, values)


def _shard_of_state(state: ParameterState, key: str, value: Any) -> NamedShard:
    """Return the shard of a parameter's state. TypeError if the ranks' shards cannot be joined."""
    name, target = f"optimizer.{state.parameter}.{key}", state.target
    if isinstance(value, Tensor):
        is_count = key == "step" and not value.dim()
        if value.shape == target.shape and not is_count:
            return NamedShard(name, state.extent, value)
        if not value.dim() or state.extent == Extent.whole(state.extent.shape):
            return NamedShard(name, Extent.whole(tuple(value.shape)), value, "whole")
    elif isinstance(value, int | float):
        kind: Kind = "float" if isinstance(value, float) else "int"
        return NamedShard(name, Extent.whole(()), torch.tensor(value, dtype=_OF_KIND[kind]), kind)
    raise TypeError(
        f"{name}: {value!r:.60} is neither a number nor a tensor of the parameter's shape, and "
        "this rank has a part of the parameter only: ranks' parts of it cannot be put together"
    )


_OF_KIND = {"int": torch.int64, "float": torch.float64}


def _groups_of(optimizer: Any) -> list[Values]:
    """Return the dicts that hold an optimizer's settings."""
    if optimizer is None:
        return []
    return optimizer.param_groups if hasattr(optimizer, "param_groups") else [vars(optimizer)]


def _keys_of_settings(group: Values) -> set[str]:
    plain = (bool, int, float, str, type(None))
    return {
        key
        for key, value in group.items()
        if key not in KERNEL_SETTINGS
        and (
            isinstance(value, plain)
            or (isinstance(value, tuple) and all(isinstance(each, plain) for each in value))
        )
    }


def _is_of_kind(own: Any, saved: Any) -> bool:
    """Return whether a saved setting is of the kind of the optimizer's own, such as a number."""
    if isinstance(own, tuple):
        is_list = isinstance(saved, list | tuple) and len(own) == len(saved)
        return is_list and all(map(_is_of_kind, own, saved))
    number = (int, float)
    is_number = isinstance(own, number) and isinstance(saved, number)
    return own is None or type(own) is type(saved) or (is_number and not isinstance(saved, bool))


_PYTHON_BYTES = 8192
"""Longer than Python's random state as text, so that it has the same length in each save."""


def random_states(rank: int, device: torch.device) -> list[NamedShard]:
    """Return the random states of this rank: of torch's generators and of Python's."""
    found = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    text = json.dumps(random.getstate()).encode().ljust(_PYTHON_BYTES)
    found["python"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return [
        NamedShard(f"rng.{rank}.{name}", Extent.whole(tuple(state.shape)), state, "whole")
        for name, state in found.items()
    ]


def load_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Restore these random states: "torch", "python" and perhaps "cuda".

    ValueError for an invalid state, before any has changed.
    """
    try:
        version, numbers, gauss = json.loads(bytes(memory_of(states["python"])))
        of_python = (version, tuple(numbers), gauss)
        random.Random().setstate(of_python)
        torch.Generator().set_state(states["torch"])
        if "cuda" in states and device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"], device)
    except (KeyError, ValueError, TypeError, OverflowError, RuntimeError) as error:
        # RecursionError is a RuntimeError, and torch's messages are of several lines.
        text = str(error).partition("\n")[0]
        raise ValueError(f"the random states are invalid ({text:.200})") from None
    torch.set_rng_state(states["torch"])
    random.setstate(of_python)
