"""An answer and its record, and messages of plain data between queue, engines and trainers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from labkit.comm import Group


@dataclass(frozen=True)
class Completion:
    """An answer, and for each token its log-probability and version when it was sampled."""

    group: int
    """The number of its prompt, equal for all answers to it."""
    member: int
    prompt: list[int]
    tokens: list[int]
    log_probs: list[float]
    versions: list[int]
    reward: float

    def to_bytes(self) -> bytes:
        """Return it for the rollout bank."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Completion:
        """Return the completion of a `to_bytes`."""
        return Completion(**json.loads(data))


def send_plain(value: Any, group: Group, dst: int) -> None:
    """Send plain data. Wire: a message of 8 bytes, and one of its JSON text."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    group.send(torch.tensor([len(text)]), dst)
    group.send(text, dst)


def receive_plain(group: Group, src: int) -> Any:
    """Return the value of the other rank's send_plain."""
    length = int(group.recv(torch.zeros(1, dtype=torch.int64), src))
    return json.loads(bytes(group.recv(torch.empty(length, dtype=torch.uint8), src).tolist()))


def broadcast_plain(value: Any, group: Group) -> Any:
    """Return rank 0's plain data on every rank. Wire: broadcasts of 8 bytes and of its text."""
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    length = int(group.broadcast(torch.tensor([len(text)])))
    buffer = text if group.rank == 0 else torch.empty(length, dtype=torch.uint8)
    return json.loads(bytes(group.broadcast(buffer).tolist()))
