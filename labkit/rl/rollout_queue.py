"""Rollouts on their way from actors to the learner: a message each, and a bounded queue.

    actor    packed: | version | observations | actions | log-probs | rewards | ended | last |
    learner  unpacked -> put, by a thread for each actor -> | 7 | 7 | 6 | -> get, by the main thread

`put` waits while the queue is full, and its actor waits with it: a queue without a bound would grow
for ever where actors are faster than the learner, and its rollouts would become older and older.

Layout: the message is one tensor of the policy's dtype. Whole numbers up to 2^24 are exact in
float32.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.rl.actor_critic import Rollout
from labkit.rl.environments import Sizes


class Queued(NamedTuple):
    """A rollout, and the version of the weights that generated it."""

    version: int
    rollout: Rollout


class BoundedQueue:
    """Rollouts from the threads of actors to the learner. Any thread may call its methods."""

    def __init__(self, size: int) -> None:
        """size: the most that may wait."""
        self._size, self._waiting = size, list[Queued]()
        self._is_closed = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()

    def put(self, item: Queued) -> bool:
        """Append an item, once there is room; return False if the queue was closed instead."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < self._size or self._is_closed)
            if not self._is_closed:
                self._waiting.append(item)
            self._changed.notify_all()
            return not self._is_closed

    def get(self, count: int) -> list[Queued]:
        """Take the oldest `count` items, once there are as many. RuntimeError after a failure."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= count or self._is_closed)
            if self._failure is not None:
                raise RuntimeError("a thread of the learner has failed") from self._failure
            taken, self._waiting = self._waiting[:count], self._waiting[count:]
            self._changed.notify_all()
            return taken

    def close(self, failure: BaseException | None = None) -> None:
        """End all waits, now and later."""
        with self._changed:
            self._is_closed = True
            self._failure = self._failure or failure
            self._changed.notify_all()


def joined(rollouts: Sequence[Rollout]) -> Rollout:
    """Return one rollout with the environments of all."""
    columns = [torch.cat(column, dim=1) for column in zip(*(each[:-1] for each in rollouts))]
    observations, actions, log_probs, rewards, ended = columns
    last = torch.cat([each.last_EO for each in rollouts])
    return Rollout(observations, actions, log_probs, rewards, ended, last)


def shapes_of(sizes: Sizes, num_steps: int, num_environments: int) -> list[torch.Size]:
    """Return the shapes of a rollout's tensors, in order."""
    steps = torch.Size([num_steps, num_environments])
    last = torch.Size([num_environments, sizes.observation])
    return [torch.Size([num_steps, *last]), steps, steps, steps, steps, last]


def packed(queued: Queued, dtype: torch.dtype) -> Tensor:
    """Return a message: the version and the rollout's tensors, one after the other."""
    parts = [torch.tensor([queued.version]), *queued.rollout]
    return torch.cat([part.to(dtype).flatten() for part in parts])


def unpacked(message: Tensor, shapes: Sequence[torch.Size]) -> Queued:
    """Return the inverse of `packed`, a copy."""
    version, *parts = message.clone().split([1, *(shape.numel() for shape in shapes)])
    observations, actions, log_probs, rewards, ended, last = (
        part.view(shape) for part, shape in zip(parts, shapes, strict=True)
    )
    rollout = Rollout(observations, actions.long(), log_probs, rewards, ended.bool(), last)
    return Queued(int(version), rollout)
