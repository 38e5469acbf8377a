"""Replicas that go on without a restart: each fails alone, and heals from a living one.

    replica 0                  replica 1        replica 2
    step 7                     step 7           killed in step 7
    step 7 again               step 7 again     a new process: fn(replica) from its beginning
    step 8: begin_step ------------- state ---> begin_step: behind, heals
    step 8                     step 8           step 8: takes part as all others

    def train(replica, num_steps):
        replica.register_state(model, optimizer, {"data": cursor})
        while replica.step < num_steps:
            group = replica.begin_step()                       # quorum; new group; healing
            ids = tensor_split(cursor.next_batch(), group.size)[group.rank]
            loss(model, ids).backward()                        # the mean over these samples
            replica.all_reduce(grads, len(ids))                # the mean over all samples
            if replica.commit():                               # all members, or none
                optimizer.step()

When a replica dies, the others lose the step in flight. Their processes, models and compiled code
stay. A whole job that restarts (restarts.py) loses all of that, and the steps since its save.

    void step    The all-reduce failed, or a member died before its vote. Model and optimizer have
                 not changed, since the program takes only a committed step. `extra` is put back.
    healing      In begin_step, before anyone computes, a replica that is behind receives model,
                 optimizer and `extra` from a member with the newest step (healing.py).
    the mean     Over the samples of the members: sum of n_r * mean_r / sum of n_r. The program
                 decides what fewer replicas do. Here they share the same global batch.
    cost         A killed member is detected at once. One that freezes, or dies while the members
                 connect their new group, costs `patience_s`: the others wait for it so long.

All replicas begin with the same state, as those of DDP do: make it from one seed. Steps are
repeated, so nothing but `extra` may advance in a step. Random numbers are not put back, and neither
are buffers that a forward changes, such as BatchNorm's, which also differ between replicas.

Wire: for each step a question and a vote (quorum.py), and one all-reduce of the numbers and one
more. Healing: a header (pickle) and then each tensor as it is.
Prior art: torchft, where the healed replica computes meanwhile and adds zero to the first step, and
a replica may be a group of ranks with shards. Here it is one rank.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labkit.checkpoint.checkpointer import Stateful
from labkit.checkpoint.contents import Contents
from labkit.comm import Group
from labkit.data_parallel.reduction import copy_from_flat, flattened
from labkit.elastic.healing import ReplicaState, receive, recovery_sources, send
from labkit.elastic.heartbeat import Address, HeartbeatSender
from labkit.elastic.quorum import BEAT_S, NoReplicaLeft, Quorum


@dataclass(frozen=True)
class Place:
    """Where a replica finds the coordinator, and a folder in which members meet."""

    address: Address
    key: bytes
    heartbeat_address: Address
    folder: str
    patience_s: float


class Replica:
    """One replica's side of the job; made by run_replicas.

    `number`: which replica; `step`: how many steps are committed; `quorum`: who takes part in the
    current step, None before the first.
    """

    def __init__(self, number: int, place: Place) -> None:
        self.number, self.step = number, 0
        self.quorum: Quorum | None = None
        self._place = place
        self._heart = HeartbeatSender(place.heartbeat_address, number, BEAT_S)
        self._coordinator = Client(place.address, authkey=place.key)
        self._coordinator.send(number)
        self._group: Group | None = None
        self._is_in_step = False
        self._is_good = False  # nothing has failed in this step
        self._held: ReplicaState | None = None
        self._extra_before: dict[str, Any] = {}

    def register_state(
        self, model: nn.Module, optimizer: Any, extra: Mapping[str, Stateful] | None = None
    ) -> None:
        """Name what healing copies, before the first begin_step.

        optimizer: torch's or the lab's, of the model's parameters; its settings go along.
        extra: by name what else has a state_dict and advances in a step, such as a SampleCursor.
        TypeError where the optimizer is not of this model.
        """
        self._held = ReplicaState(model, Contents(model, optimizer), dict(extra or {}))

    def begin_step(self) -> Group:
        """Wait for a quorum; heal, if this replica or another member is behind.

        Returns the group of the members. It stays the same while they do. A step that was started
        and has no `commit` becomes void for all. NoReplicaLeft where no living replica has the
        newest state. RuntimeError before `register_state`.
        """
        if self._held is None:
            raise RuntimeError(
                "begin_step has nothing to heal: call replica.register_state(...) before it"
            )
        if self._is_in_step:
            self._undo()
        while True:
            quorum = self._ask("ask", self.step)
            if quorum is None:
                raise NoReplicaLeft("no living replica has the newest state, or the job has ended")
            own = self._held.state() if self.number in recovery_sources(quorum).values() else None
            try:
                group = self._joined(quorum)
                state = self._exchanged(quorum, group, own)
            except RuntimeError:  # a member died meanwhile: it is not in the next quorum
                self._leave()
                continue
            if state is not None:
                self._held.load(state)
            self.step, self.quorum = quorum.step, quorum
            self._is_in_step = self._is_good = True
            self._heart.beat(self.step)
            self._extra_before = copy.deepcopy(self._held.extra_states())
            return group

    def all_reduce(self, tensors: Sequence[Tensor], num_samples: int) -> None:
        """Average over the samples of all members, in place.

        tensors: means over the `num_samples` samples of this replica, such as gradients; zeros
        where it has none. When a member dies meanwhile, the step is void and the tensors are of no
        use: `commit` says so. RuntimeError outside a step.
        Wire: an all-reduce of all numbers and one more, in 32 bits at least.
        """
        group, weight = self._in_step(), torch.ones(1)
        try:
            total = group.all_reduce(flattened([*tensors, weight]) * num_samples)
        except RuntimeError:
            self._is_good = False
        else:
            copy_from_flat(total / total[-1], [*tensors, weight])

    def commit(self) -> bool:
        """Vote, and return whether the step counts: the same for all members that live.

        True: take the optimizer's step. False: the step is void, `extra` is as it was at its
        beginning, and the next begin_step repeats it. RuntimeError outside a step.
        """
        self._in_step()
        is_committed = bool(self._ask("vote", self._is_good))
        if not is_committed:
            self._undo()
            return False
        self._is_in_step = False
        self.step += 1
        self._heart.beat(self.step)
        return True

    def _ask(self, *question: Any) -> Any:
        self._coordinator.send(question)
        return self._coordinator.recv()

    def _in_step(self) -> Group:
        if not self._is_in_step or self._group is None:
            raise RuntimeError("there is no step: call replica.begin_step() first")
        return self._group

    def _joined(self, quorum: Quorum) -> Group:
        """The group of this quorum: the one before, or a new one."""
        if self._group is None or self.quorum is None or quorum.number != self.quorum.number:
            self._leave()
            self._group = Group.from_store(
                Path(self._place.folder) / f"group-{quorum.number}",
                quorum.members.index(self.number),
                len(quorum.members),
                timedelta(seconds=self._place.patience_s),
                f"quorum-{quorum.number}",
            )
        return self._group

    def _undo(self) -> None:
        """As it was at the beginning of the step; the members that still wait fail at once."""
        assert self._held is not None
        self._leave()
        self._held.load_extra(self._extra_before)
        self._is_in_step = False

    def _leave(self) -> None:
        """Close the group's connections, so that no member waits for this one in it."""
        if self._group is not None:
            self._group.abort()
        self._group = None

    def _exchanged(self, quorum: Quorum, group: Group, own: Any) -> Any:
        """Send the own state to those that this replica heals; what it received itself, or None."""
        received = None
        for replica, source in recovery_sources(quorum).items():
            if source == self.number:
                send(own, group, quorum.members.index(replica))
            elif replica == self.number:
                received, num_bytes = receive(group, quorum.members.index(source))
                self._ask("healed", source, quorum.step, num_bytes)
        return received
