"""What a rank has to save: each strategy's tensors as pieces of whole, named tensors.

    a rank holds                    its piece of `blocks.0.attention.output.weight` (64, 64)
    serial, DDP, pipeline           the whole tensor, on one rank or on several
    tensor parallelism              rows 0-31, a box
    ZeRO-3                          elements 1024 to 2047, a range
    ZeRO-1 and tensor parallelism   the whole box of the parameter; of each optimizer state a range

The whole tensors are those of the serial model under its names, and they know no rank. So a layout
is only a way to cut them, and a checkpoint of one layout loads into any other.

    model.NAME                 parameters, and buffers that a state_dict has
    optimizer.NAME.STATE       what the optimizer keeps beside a parameter: exp_avg, step, master
    rng.RANK.torch, .python    the random state of each rank
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from labkit.checkpoint.extent import Extent
from labkit.combined import CombinedGPT
from labkit.optimizer import load_states, states_of
from labkit.pipeline import PipelineGPT
from labkit.precision import MasterWeights
from labkit.tensor_parallel.full_state import parameters_with_cuts
from labkit.zero import FullyShardedModule
from labkit.zero.sharded_states import ShardedStates

MASTER = "master"
Values = dict[str, Any]


Kind = Literal["elements", "whole", "int", "float"]
"""What a piece is: elements that a layout cuts; a tensor that none cuts; a number of Python's."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Some elements of a whole tensor, and where this rank has them."""

    name: str
    extent: Extent
    tensor: Tensor
    """As many elements as the extent, row by row."""
    kind: Kind = "elements"


@dataclass(frozen=True, eq=False)
class StateOf:
    """What an optimizer keeps beside the elements of one parameter that it updates on this rank."""

    parameter: str
    extent: Extent
    target: Tensor
    """What it updates: the parameter, this rank's shard of it, or a master of either."""
    values: Values


class Contents:
    """A rank's model and optimizer as pieces, to be saved and to be filled."""

    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        """model: a plain one, or of any strategy. optimizer: of its parameters; None: none.

        TypeError for an optimizer whose parameters are not the model's.
        """
        self.optimizer = optimizer
        self.tensors = list(pieces_of(model))
        self._by_id = {id(piece.tensor): piece for piece in self.tensors}

    def pieces(self) -> list[Piece]:
        """All that this rank has to save now: an optimizer has no states before its first step."""
        found = [Piece(f"model.{each.name}", each.extent, each.tensor) for each in self.tensors]
        for state in self.states():
            for key, value in state.values.items():
                found.append(_piece_of_state(state, key, value))
        return found

    def states(self) -> list[StateOf]:
        """The optimizer's states, one for each tensor that it updates, in its order."""
        return [] if self.optimizer is None else list(self._states(self.optimizer))

    def load_states(self, states: Sequence[Values]) -> None:
        """`states` run backwards: the optimizer keeps these from now on, in its order."""
        optimizer = self.optimizer
        if isinstance(optimizer, ShardedStates):
            optimizer.load_fragments(states)
        elif isinstance(optimizer, MasterWeights):
            for master, values in zip(optimizer.masters, states, strict=True):
                master.detach().copy_(values.pop(MASTER))
            load_states(optimizer.optimizer, states)
        elif optimizer is not None:
            load_states(optimizer, states)

    def settings(self) -> list[Values]:
        """The optimizer's settings by group, such as the learning rate that a schedule has set."""
        return [
            {key: value for key, value in group.items() if key in _keys_of_settings(group)}
            for group in _groups_of(self.optimizer)
        ]

    def takes_settings(self, settings: Sequence[Values]) -> bool:
        """Whether they are of as many groups of parameters, or one of the two has no optimizer."""
        groups = _groups_of(self.optimizer)
        return not groups or not settings or len(groups) == len(settings)

    def load_settings(self, settings: Sequence[Values]) -> None:
        """`settings` run backwards."""
        for group, saved in zip(_groups_of(self.optimizer), settings):
            for key in _keys_of_settings(group) & saved.keys():
                is_tuple = isinstance(group[key], tuple)
                group[key] = tuple(saved[key]) if is_tuple else saved[key]

    def _states(self, optimizer: Any) -> Iterator[StateOf]:
        if isinstance(optimizer, ShardedStates):
            for fragment in optimizer.fragments():
                piece = self._piece_of(fragment.parameter)
                _require_rows(piece.name, fragment.parameter)
                extent = piece.extent.within(fragment.start, fragment.stop)
                yield StateOf(piece.name, extent, fragment.target, fragment.values)
            return
        if isinstance(optimizer, MasterWeights):
            states = states_of(optimizer.optimizer)
            pairs = zip(optimizer.parameters, optimizer.masters, strict=True)
            for (parameter, master), values in zip(pairs, states, strict=True):
                piece = self._piece_of(parameter)
                yield StateOf(piece.name, piece.extent, master, {**values, MASTER: master})
            return
        for parameter, values in zip(_parameters_of(optimizer), states_of(optimizer), strict=True):
            piece = self._piece_of(parameter)
            yield StateOf(piece.name, piece.extent, parameter, values)

    def _piece_of(self, parameter: Tensor) -> Piece:
        if id(parameter) not in self._by_id:
            raise TypeError(
                f"the optimizer updates a tensor of shape {tuple(parameter.shape)} that is no "
                "parameter of this model: give the model and the optimizer that belong together"
            )
        return self._by_id[id(parameter)]


def pieces_of(model: nn.Module) -> Iterator[Piece]:
    """A model's parameters and saved buffers as pieces of the serial model's, by its names."""
    if isinstance(model, FullyShardedModule):
        for name, shard, form, start in model.named_shards():
            _require_rows(name, form)
            extent = Extent.whole(tuple(form.shape)).within(start, start + shard.numel())
            yield Piece(name, extent, shard)
        yield from _buffers_of(model.module)
    elif isinstance(model, CombinedGPT):
        cuts = model.cuts()
        for name, parameter in model.gpt_parameters().items():
            yield Piece(name, _extent_of(parameter, cuts[name], model.mesh.tp.rank), parameter)
    elif isinstance(model, PipelineGPT):
        for name, parameter in model.gpt_parameters().items():
            yield Piece(name, Extent.whole(tuple(parameter.shape)), parameter)
    elif isinstance(wrapped := getattr(model, "module", None), nn.Module):  # DDP
        yield from pieces_of(wrapped)
    else:
        rank = getattr(getattr(model, "group", None), "rank", 0)
        found: dict[int, Piece] = {}  # a tied parameter under its first name only
        for name, tensor, cut in parameters_with_cuts(model):
            found.setdefault(id(tensor), Piece(name, _extent_of(tensor, cut, rank), tensor))
        yield from found.values()
        yield from _buffers_of(model)


def _buffers_of(model: nn.Module) -> Iterator[Piece]:
    saved = model.state_dict(keep_vars=True)
    for name, buffer in model.named_buffers():
        if name in saved:
            yield Piece(name, Extent.whole(tuple(buffer.shape)), buffer)


def _require_rows(name: str, parameter: Tensor) -> None:
    """ZeRO counts elements in the order of memory, and a checkpoint counts them row by row."""
    if not parameter.is_contiguous():
        raise ValueError(
            f"{name} has the strides {parameter.stride()}, and its shards are cut in the order of "
            "memory: make the parameter contiguous before the model is sharded"
        )


def _extent_of(parameter: Tensor, cut: Any, rank: int) -> Extent:
    if cut.dim is None:
        return Extent.whole(tuple(parameter.shape))
    return Extent.of_dim(tuple(cut.whole_shape(parameter)), cut.dim, cut.held[rank])


def _piece_of_state(state: StateOf, key: str, value: Any) -> Piece:
    """One of the states of a parameter. TypeError for what cannot be put together from ranks."""
    name, target = f"optimizer.{state.parameter}.{key}", state.target
    if isinstance(value, Tensor):
        if value.shape == target.shape and value.dim():
            return Piece(name, state.extent, value)
        if not value.dim() or state.extent == Extent.whole(state.extent.shape):
            return Piece(name, Extent.whole(tuple(value.shape)), value, "whole")
    elif isinstance(value, int | float):
        kind: Kind = "float" if isinstance(value, float) else "int"
        return Piece(name, Extent.whole(()), torch.tensor(value, dtype=_OF_KIND[kind]), kind)
    raise TypeError(
        f"{name}: {value!r:.60} is neither a number nor a tensor of the parameter's shape, and "
        "this rank has a part of the parameter only: ranks' parts of it cannot be put together"
    )


_OF_KIND = {"int": torch.int64, "float": torch.float64}


def _parameters_of(optimizer: Any) -> list[Tensor]:
    if hasattr(optimizer, "param_groups"):
        return [p for group in optimizer.param_groups for p in group["params"]]
    return list(optimizer.parameters)


def _groups_of(optimizer: Any) -> list[Values]:
    """The dicts in which an optimizer has its settings."""
    if isinstance(optimizer, MasterWeights):
        return _groups_of(optimizer.optimizer)
    if optimizer is None:
        return []
    return optimizer.param_groups if hasattr(optimizer, "param_groups") else [vars(optimizer)]


def _keys_of_settings(group: Values) -> set[str]:
    plain = (bool, int, float, str, type(None))
    return {
        key
        for key, value in group.items()
        if isinstance(value, plain)
        or (isinstance(value, tuple) and all(isinstance(each, plain) for each in value))
    }


def random_states(rank: int, device: torch.device) -> list[Piece]:
    """The random states of this rank: of torch's generators and of Python's."""
    found = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(device)
    text = json.dumps(random.getstate()).encode()
    found["python"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return [
        Piece(f"rng.{rank}.{name}", Extent.whole(tuple(state.shape)), state, "whole")
        for name, state in found.items()
    ]


def load_random_states(states: dict[str, Tensor], device: torch.device) -> None:
    """`random_states` run backwards, by name without its rank."""
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
    if "python" in states:
        version, numbers, gauss = json.loads(bytes(states["python"].tolist()))
        random.setstate((version, tuple(numbers), gauss))
