"""Group: ranks that exchange tensors.

A strategy learns its rank, the group's size and the device from its Group, and from nothing else:
no globals, no environment variables. Each operation is in the journal before it starts.

This file makes groups and closes them. primitives.py has their operations, member.py the steps that
all operations share. All members close a group together. (torch's destroy_process_group does not
wait for the others. A rank that calls it early makes their operations fail: "connection reset".)

`connected`, `process_group_from_store` and `destroy` handle the process groups of torch.distributed
behind Groups. NotAMember is the result of a split in which a rank takes no part. NoJournal is the
journal of groups outside of `labkit.run`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm import recorder
from labkit.comm.callers import Call
from labkit.comm.journal import Journal
from labkit.comm.mismatch_detector import NO_PEERS, SameHostRanks
from labkit.comm.primitives import Primitives
from labkit.comm.throttle import Lateness, Throttle
from labkit.comm.traffic import ring_all_gather


class Group(Primitives):
    """An ordered set of ranks, seen from one of them.

    `rank`: this rank's number in the group; `size`: how many there are; `ranks`: their global
    numbers; `device`: where tensors must be; `backend`: "gloo" or "nccl". The arguments `root`,
    `dst` and `src` are numbers in the group.

    Every operation raises ValueError or TypeError, before anything is sent, for a tensor on
    another device, a rank outside the group or a shape that cannot be cut; OperationMismatch, a
    RuntimeError, where another rank of this host means a different operation
    (mismatch_detector.py); and RuntimeError when a peer is gone.
    """

    @classmethod
    def default(cls) -> Group:
        """Return the group of torch.distributed's default process group.

        Inside `labkit.run` it is `world` itself; under torchrun, a group without a journal.
        """
        if not dist.is_initialized():
            raise RuntimeError(
                "there is no default process group; pass the `world` that labkit.run hands to "
                "your function, or call torch.distributed.init_process_group first"
            )
        process_group = dist.group.WORLD
        assert process_group is not None
        if process_group not in _WORLDS:
            ranks = tuple(range(dist.get_world_size()))
            device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
            _WORLDS[process_group] = cls(process_group, ranks, device, NoJournal())
        return _WORLDS[process_group]

    @classmethod
    def from_store(cls, store: Path, rank: int, size: int, timeout: timedelta, name: str) -> Group:
        """Make a gloo group of `size` processes of this host that have no world in common.

        They meet in the file `store`, a new one for each group. An operation that waits longer than
        `timeout` is a RuntimeError. Without a journal; it cannot be split, and abort() ends it.
        RuntimeError if the others do not come in time.
        """
        process_group = process_group_from_store(store, rank, size, timeout)
        ranks = tuple(range(size))
        return cls(process_group, ranks, torch.device("cpu"), NoJournal(), name, timeout)

    def abort(self) -> None:
        """Close the connections of a group from `from_store`, without waiting for the others.

        Their operations with this rank fail at once. For a group with a member that is dead.
        """
        self._process_group = self._detector = Closed(self.name)
        self._torch_group = None

    def compare_remaining(self) -> None:
        """Compare the last operations of all groups, at the end of a run.

        Raises OperationMismatch.
        """
        for detector in self._same_host.detectors:
            detector.compare_remaining()

    def pop_lateness(self) -> Lateness:
        """Return the counts of throttled messages, and of late ones, since the last call."""
        return Lateness() if self._throttle is None else self._throttle.pop_lateness()

    @classmethod
    def world(
        cls,
        device: torch.device,
        journal: Journal,
        timeout: timedelta,
        same_host: SameHostRanks = NO_PEERS,
        throttle: Throttle | None = None,
    ) -> Group:
        """Make the world, with a journal. `connect` calls this once per process."""
        process_group = dist.group.WORLD
        assert process_group is not None
        ranks = tuple(range(process_group.size()))
        world = cls(
            process_group,
            ranks,
            device,
            journal,
            timeout=timeout,
            same_host=same_host,
            throttle=throttle,
        )
        _WORLDS[process_group] = world
        return world

    def split(self, color: int | None) -> Group | NotAMember:
        """Cut the group into disjoint ones: members with the same `color` end up together.

        Every member calls it, as with MPI_Comm_split; ranks keep their order. A member with color
        None joins no group and gets a NotAMember, which is false: ask `if group:` before using it.
        Until it is closed, a group of n ranks takes on each of them: n + 4 open files, one more
        for each pair that exchanges messages, and 3 threads. If you make many, close them, with
        `with world.split(color) as group:` or `group.close()`. Dropping the last reference closes
        nothing, because others may still need the connections.
        TypeError: a color that is no whole number. ValueError: one above 64 bits. RuntimeError: no
        connection, for example because this process may open no more files (`ulimit -n`).
        Wire: an all_gather of two numbers, then connections.
        """
        if color is not None and not isinstance(color, int):
            raise TypeError(f"color={color!r}: give a whole number like world.rank // 2, or None")
        mine = torch.tensor([color is not None, int(color or 0)], dtype=torch.int64)
        mine = mine.to(self.device)
        everyone = mine.new_empty(2 * self.size)
        self._started(
            lambda: self._process_group._allgather_base(everyone, mine, c10d.AllgatherOptions()),
            lambda: None,
            self._post("split", mine, ring_all_gather(mine.nbytes, self.size), True),
            True,
        )
        self._num_splits += 1
        if color is None:
            return NotAMember(self.ranks[self.rank], self.name)
        ranks = tuple(
            rank
            for rank, (joins, its_color) in zip(
                self.ranks, everyone.view(-1, 2).tolist(), strict=True
            )
            if joins and its_color == color
        )
        name = f"{self.name}.{self._num_splits}.{int(color)}"
        backend = dist.get_backend(self._torch_group)  # on_cpu gives another one than the world's
        process_group = connected(ranks, name, self._timeout, backend)
        return Group(
            process_group,
            ranks,
            self.device,
            self._journal,
            name,
            self._timeout,
            self._same_host,
            self._throttle,
        )

    def on_cpu(self) -> Group:
        """Make a gloo group of the same ranks, for tensors on the CPU. Every member calls it.

        For messages that a thread sends beside the program's own. Wire: connections.
        """
        self._num_splits += 1
        name = f"{self.name}.{self._num_splits}.cpu"
        process_group = connected(self.ranks, name, self._timeout, "gloo")
        return Group(
            process_group,
            self.ranks,
            torch.device("cpu"),
            self._journal,
            name,
            self._timeout,
            self._same_host,
        )

    def close(self) -> None:
        """Release what split took: connections, open files and the mismatch detector's tables.

        Every member calls it, and waits for the others, as with MPI_Comm_free. A rank that calls
        another operation meanwhile gets an OperationMismatch. Afterwards each call on the group is
        a RuntimeError, but a second close does nothing. Groups that were split from it live on. A
        SharedMemory of it keeps its memory, and refuses operations. RuntimeError for the world,
        which ends with the run, and while an operation is in flight here: wait for it first. The
        group is then as before. Wire: a barrier.
        """
        if self._torch_group is None:
            return
        self._require_can_close()
        self._meet("close")
        # All members have posted their last operation, so this compares all of them.
        self._detector.leave()
        destroy(self._torch_group)
        self._process_group = self._detector = Closed(self.name)
        self._torch_group = None  # it holds its connections

    def __enter__(self) -> Self:
        """Enter a `with` that closes the group at its end. RuntimeError: the world, or closed."""
        self._detector.require_in_step()
        self._require_can_close()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *error: object) -> None:
        """Close it, but not after an error, since the others may never reach their `close`."""
        if error_type is None:
            self.close()

    def _require_can_close(self) -> None:
        if self._torch_group == dist.group.WORLD:
            raise RuntimeError(f"{self.name} ends with the run: only what split gave is closed")
        if num := len(self._in_flight):
            raise RuntimeError(
                f"the group {self.name} has operations in flight on rank {self.ranks[self.rank]} "
                f"({num}): keep what wait=False, isend and irecv return, and call wait() on each "
                "before close()"
            )


def chosen(group: Group | None) -> Group:
    """Return `group`, or the default group if it is None: what `group=None` means in the lab.

    RuntimeError for a NotAMember, TypeError for what is no group.
    """
    if group is None:
        return Group.default()
    # A tensor's size is a method. A NotAMember refuses with an error of its own.
    if not isinstance(getattr(group, "size", None), int):
        raise TypeError(f"group={group!r:.60} is no Group; pass `world`, or what world.split gave")
    return group


# Which Group stands for which default process group of torch.distributed.
_WORLDS: dict[dist.ProcessGroup, Group] = {}


def write_flight_record(path: Path, *, only_active: bool) -> None:
    """Write torch's own record of this process to `path`, for the driver. Any thread calls it."""
    process_group = dist.group.WORLD if dist.is_initialized() else None
    world = None if process_group is None else _WORLDS.get(process_group)
    num_in_journal = 0 if world is None else world._journal.num_collectives
    recorder.write(path, num_in_journal, only_active=only_active)


class NotAMember:
    """Stands for a group that this rank does not belong to. It is false: `if group: ...`.

    Every call on it raises RuntimeError, except close() and `with`, which do nothing.
    (torch.distributed itself lets such a call return with the tensor unchanged, and a warning.)
    """

    def __init__(self, rank: int, parent: str) -> None:
        """`rank`: global; `parent`: the group that was split."""
        self._rank, self._parent = rank, parent

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"NotAMember(rank {self._rank}, of a split of {self._parent})"

    def close(self) -> None:
        """There is nothing to close."""

    def __enter__(self) -> NotAMember:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise RuntimeError(
            f"rank {self._rank} uses {name} of a group that it does not belong to: in the split of "
            f"{self._parent} it gave color=None, so it is in none of the groups. Guard the call "
            "with `if group:`, or give the rank a color"
        )


class NoJournal(Journal):
    """A journal that writes nothing: for groups outside of `labkit.run`, such as under torchrun."""

    num_collectives = 0

    def __init__(self) -> None:
        """Nothing to open."""

    def group(self, name: str, ranks: tuple[int, ...]) -> int:
        """Nothing is entered."""
        return 0

    def caller(self) -> Call:
        """Nobody is looked up."""
        return Call(0, 0, "")

    def post(self, *args: object, **fields: object) -> int:
        """Nothing is written."""
        return 0

    def begin_region(self, name: str) -> int:
        """Nothing is written."""
        return 0

    def waiting(self, record: int) -> None:
        """Nothing is written."""

    def done(self, record: int) -> None:
        """Nothing is written."""

    def failed(self, record: int) -> None:
        """Nothing is written."""


class Closed:
    """Stands for the parts that a closed group has released. Every call on it is a RuntimeError."""

    def __init__(self, name: str) -> None:
        """`name`: the group's."""
        self._name = name

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(
            f"the group {self._name} is closed, and so are its connections: use it before its "
            "close() or inside of its `with`, or make another one with split"
        )


def connected(
    ranks: tuple[int, ...], name: str, timeout: timedelta | None, backend: str | None = None
) -> dist.ProcessGroup:
    """Create a process group of `ranks`, under a name of its own. Only these ranks call it.

    backend: None for that of the default group.

    Not dist.new_group: either every rank of the world must call it, or (with
    use_local_synchronization) it makes the name from the number of groups that this process has,
    and members with different numbers of groups wait for each other for ever.
    """
    backend = dist.Backend(backend or dist.get_backend())
    process_group, _ = c10d._new_process_group_helper(
        len(ranks),
        ranks.index(dist.get_rank()),
        list(ranks),
        backend,
        c10d._get_default_store(),
        f"labkit/{name}",  # type: ignore[arg-type]
        timeout=timeout or c10d._get_default_timeout(backend),
        group_desc=name,
    )
    c10d._world.pg_group_ranks[process_group] = {rank: i for i, rank in enumerate(ranks)}
    return process_group


def process_group_from_store(store: Path, rank: int, size: int, timeout: timedelta) -> Any:
    """Create a gloo group of processes without a common world, which meet in the file `store`.

    torch knows nothing of it: its connections are closed with its last reference.
    """
    files = dist.FileStore(str(store), size)
    files.set_timeout(timeout)
    return dist.ProcessGroupGloo(files, rank, size, timeout)


def destroy(process_group: dist.ProcessGroup) -> None:
    """Make torch forget the group. Its connections close with the caller's own last reference."""
    c10d.destroy_process_group(process_group)
