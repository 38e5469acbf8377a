"""Calls that are not one operation of a Group, compared among ranks before they are carried out.

    dist.all_reduce(x, MAX)     past the Groups; torch's own record has neither reduce op nor root
    ring_all_reduce(x, world)   many messages, of flat pieces that fit whatever x's shape

Each goes into a second journal, and is compared with the other ranks' calls as every operation of a
Group is (agreement.py): what kind it is, reduce op, root, dtype, shape, and the order of calls. The
journal of the run is left as it is, for what is under way is already in it, or in torch's record.

    calls/rank-2.journal   what rank 2 called
    calls/*.calls, *.0-1, *.rows, *.places: the tables to compare by

A call of torch's is open until it has returned, or what it returned was waited for: the doctor
knows by this which of them a rank blocks in (open_call.py).

Wire: nothing; a table in memory that the ranks of one host share.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from labkit.comm import made_anew, own_timeout
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.agreement.neighbours import Neighbours
from labkit.comm.calls.of_a_group import ComparedCalls
from labkit.comm.group import Group
from labkit.comm.journal import Journal
from labkit.comm.words import ranks_named

FOLDER = "calls"


def journal_of(folder: Path, rank: int) -> Path:
    """Where a rank's calls are written down; `folder` is that of the ranks' own journals."""
    return folder / FOLDER / f"rank-{rank}"


class CallsOfAProcess:
    """One process's calls, whatever the group."""

    def __init__(self, neighbours: Neighbours, rank: int) -> None:
        """`neighbours`: as for the Groups, whose folders get one of ours."""
        self._neighbours, self._rank = neighbours, rank
        folder = neighbours.tables / FOLDER
        self._ours = Neighbours(neighbours.ranks, folder, folder, neighbours.agreements)
        self._by_group: dict[str, tuple[dist.ProcessGroup, ComparedCalls]] = {}
        self._adding = threading.Lock()
        self._number_in_run: dict[int, int] = {}
        self._num_ranks = dist.get_world_size() if dist.is_initialized() else 0

    @functools.cached_property
    def _journal(self) -> Journal:
        # At the first call: most programs make none, and a rank starts in a few milliseconds.
        path = journal_of(self._neighbours.journals, self._rank)
        path.parent.mkdir(exist_ok=True)
        return Journal(path)

    def renumber(self, store: dist.Store, rank: int, world_size: int) -> None:
        """The program has made a world of its own, in which we are `rank`: tell it to the others.

        Journals, and what is said about ranks, keep the numbers that these have in the run.
        """
        key = "labkit/number in the run, and of the world/"
        store.set(f"{key}{rank}", f"{self._rank} {made_anew.next_number()}")
        told = [store.get(f"{key}{each}").split() for each in range(world_size)]
        self._number_in_run = {each: int(number) for each, (number, _) in enumerate(told)}
        members = sorted(self._number_in_run.values())
        of = "" if world_size == self._num_ranks else ranks_named(members)
        made_anew.made(max(int(number) for _, number in told), of)

    def number_in_run(self, rank: int) -> int:
        """Of a rank by its present number in torch.distributed."""
        return self._number_in_run.get(rank, rank)

    def of(
        self, name: str, process_group: dist.ProcessGroup, ranks: Callable[[], Iterable[int]]
    ) -> ComparedCalls:
        """The calls of the group that has this name on every member.

        ranks: as torch has them, asked for once.
        """
        known = self._by_group.get(name)
        if known is None or known[0] is not process_group:
            with self._adding:  # two threads' first calls are counted together
                known = self._by_group.get(name)
                if known is None or known[0] is not process_group:
                    known = process_group, self._begun(name, process_group, ranks())
                    self._by_group[name] = known
        return known[1]

    def _begun(
        self, name: str, process_group: dist.ProcessGroup, ranks: Iterable[int]
    ) -> ComparedCalls:
        return ComparedCalls(
            process_group,
            tuple(map(self.number_in_run, ranks)),
            torch.device("cpu"),
            self._journal,
            name + made_anew.suffix(name.partition(" ")[0]),
            neighbours=self._ours,
        )

    def of_group(self, group: Group) -> ComparedCalls:
        """The calls of a Group, until it is closed."""
        if group.name not in self._by_group:
            group._when_closed.append(functools.partial(self._forget, group.name))
        return self.of(group.name, group._process_group, lambda: group.ranks)

    def forget(self, process_group: dist.ProcessGroup | None) -> None:
        """It is destroyed; None: the default one is, and all others with it.

        What is left of its calls is compared, for the last time. Raises Disagreement.
        """
        refusals = []
        for name, (each, _) in list(self._by_group.items()):
            if process_group is None or each is process_group:
                try:
                    self._forget(name)
                except Disagreement as why:
                    refusals.append(why)
        if refusals:
            raise refusals[0]

    def _forget(self, name: str) -> None:
        if name in self._by_group:  # not if all were destroyed since
            _, calls = self._by_group.pop(name)
            calls._agreement.leave()


_of_this_process: CallsOfAProcess | None = None


def begin(neighbours: Neighbours, rank: int) -> None:
    """From now on this process's calls are compared with those of its neighbours."""
    global _of_this_process
    own_timeout.begin()
    _of_this_process = CallsOfAProcess(neighbours, rank) if len(neighbours.ranks) > 1 else None


def _end() -> None:
    """What a rank has forked is no rank, and its calls meet nobody's."""
    global _of_this_process
    _of_this_process = None


os.register_at_fork(after_in_child=_end)


def of_this_process() -> CallsOfAProcess | None:
    """Where calls are entered; None where nobody compares, as in a run by hand under torchrun."""
    return _of_this_process


def enter_call(
    kind: str,
    x: torch.Tensor,
    group: Group,
    *,
    root: int | None = None,
    splits: Sequence[Sequence[int]] | None = None,
) -> None:
    """First thing in a collective that is made of messages: compare it with the other members'.

    kind: its function's name, one of record.KINDS. x: what says dtype and shape, alike on all.
    Raises Disagreement, before the first message. Does nothing outside of a run of the lab.
    """
    calls = of_this_process()
    if calls is not None and isinstance(group, Group):  # a grader's stand-in counts for itself
        calls.of_group(group).enter(kind, x, root=root, splits=splits)  # its messages say the rest
