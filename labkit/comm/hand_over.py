"""How many collectives a process group has been handed, by whomever.

A Group, the functions of torch.distributed and torch's own DDP may share one process group, and it
matches what it is handed by order alone: a Group's all_reduce on one rank meets DDP's on another.
So each collective that is compared says also which one of its process group it is.

    world.all_reduce(x)       1 | dist.all_reduce(y)      1
    dist.all_reduce(y)        2 | world.all_reduce(x)     2     x is the first, and the second

gloo counts messages as well, of which ranks have different numbers: those are taken off.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


class HandOver:
    """What one process group has been handed. Any thread."""

    def __init__(self, process_group: dist.ProcessGroup) -> None:
        """Before the first message of this process: all of them are to be counted here.

        One that goes another way, such as `process_group.send`, counts as a collective. Of a
        monitored_barrier, which sends some, `give_up` is told.
        """
        self._number = process_group._get_sequence_number_for_group  # type: ignore[attr-defined]
        self._lock = threading.Lock()
        self._begun = self._done = 0
        self._is_known = True

    @contextmanager
    def of_a_message(self) -> Iterator[None]:
        """Inside, a message is handed over. One that is refused may have been counted, or not."""
        with self._lock:
            self._begun += 1
        try:
            yield
        except BaseException:
            self.give_up()
            raise
        finally:
            with self._lock:
                self._done += 1

    def give_up(self) -> None:
        """Nobody knows from now on, as after messages that are handed over by another way."""
        self._is_known = False

    @property
    def num_collectives(self) -> int | None:
        """So far; None where nobody knows, as while another thread is handing over a message."""
        with self._lock:
            if not self._is_known or self._begun != self._done:
                return None
            return self._number() - self._done


_by_process_group: dict[dist.ProcessGroup, HandOver] = {}
# Two threads' first uses get one HandOver: with two, each would count the other's messages as
# collectives.
_adding = threading.Lock()


def to(process_group: object) -> HandOver | None:
    """What this one has been handed; None for what is no process group of gloo's."""
    if not isinstance(process_group, dist.ProcessGroup):
        return None
    known = _by_process_group.get(process_group)
    if known is None and _is_gloos(process_group):
        with _adding:
            known = _by_process_group.get(process_group)
            if known is None:
                known = _by_process_group[process_group] = HandOver(process_group)
    return known


def _is_gloos(process_group: dist.ProcessGroup) -> bool:
    is_destroyed = process_group not in c10d._world.pg_map
    return not is_destroyed and dist.get_backend(process_group) == "gloo"


def forget(process_group: dist.ProcessGroup | None) -> None:
    """It is destroyed; None: the default one is, and all others with it."""
    if process_group is None:
        _by_process_group.clear()
    else:
        _by_process_group.pop(process_group, None)
