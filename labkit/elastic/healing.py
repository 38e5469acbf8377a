"""Healing: a replica that is behind receives the whole state from one that has the newest.

    replica 0   step 8   source ----- state ----> replica 2   step 0
    replica 1   step 8   source ----- state ----> replica 3   step 5

    state   model.state_dict(), the optimizer's states and settings, the states of `extra`

Where there are as many sources, each replica that is behind has its own: two heal as fast as one.

Wire: 8 bytes, the length of the header; the header, a pickle of the state without tensors; then
each tensor as it is in memory, in the order of the header. No copy of the whole state is made.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checkpoint.checkpointer import Stateful
from labkit.checkpoint.contents import Contents
from labkit.checkpoint.plain_data import memory_of
from labkit.comm import Group
from labkit.elastic.quorum import Quorum


def recovery_sources(quorum: Quorum) -> dict[int, int]:
    """By each member that is behind, the one that sends it the state: another one for each."""
    by_member = list(zip(quorum.members, quorum.steps))
    sources = [member for member, step in by_member if step == quorum.step]
    behind = [member for member, step in by_member if step < quorum.step]
    return {member: sources[index % len(sources)] for index, member in enumerate(behind)}


@dataclass(frozen=True)
class ReplicaState:
    """The state that healing copies: all that a replica's next step depends on."""

    model: nn.Module
    contents: Contents
    extra: dict[str, Stateful]

    def extra_states(self) -> dict[str, Any]:
        """The states of `extra`, by name."""
        return {name: each.state_dict() for name, each in self.extra.items()}

    def load_extra(self, states: Mapping[str, Any]) -> None:
        """`extra_states` run backwards."""
        for name, state in states.items():
            self.extra[name].load_state_dict(state)

    def state(self) -> dict[str, Any]:
        """Everything; the tensors are those in use, no copies."""
        return {
            "model": self.model.state_dict(),
            "optimizer": [state.values for state in self.contents.states()],
            "settings": self.contents.settings(),
            "extra": self.extra_states(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """`state` run backwards."""
        self.model.load_state_dict(state["model"])
        self.contents.load_states(state["optimizer"])
        self.contents.load_settings(state["settings"])
        self.load_extra(state["extra"])


class _WithoutTensors(pickle.Pickler):
    """Leaves the tensors out, and keeps them in a list."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value.detach())
        return value.dtype, tuple(value.shape)


class _WithTensors(pickle.Unpickler):
    """Puts empty tensors where some were left out, and keeps them in a list."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []

    def persistent_load(self, form: Any) -> Tensor:
        dtype, shape = form
        self.tensors.append(torch.empty(shape, dtype=dtype))
        return self.tensors[-1]


def send(state: Any, group: Group, dst: int) -> None:
    """Send a state to a member of the group, tensor by tensor."""
    file = io.BytesIO()
    pickler = _WithoutTensors(file)
    pickler.dump(state)
    header = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
    for tensor in (torch.tensor([len(header)]), header, *pickler.tensors):
        if tensor.numel():
            group.send(tensor, dst)


def receive(group: Group, src: int) -> tuple[Any, int]:
    """The state, and how many bytes came, its header among them."""
    length = group.recv(torch.zeros(1, dtype=torch.int64), src)
    header = group.recv(torch.empty(int(length), dtype=torch.uint8), src)
    unpickler = _WithTensors(io.BytesIO(bytes(memory_of(header))))
    state = unpickler.load()
    for tensor in unpickler.tensors:
        if tensor.numel():
            group.recv(tensor, src)
    return state, length.nbytes + header.nbytes + sum(x.nbytes for x in unpickler.tensors)
