"""How many collectives a process group has been handed, by whomever.

A Group, the functions of torch.distributed and torch's own DDP may share one process group, and it
matches what it is handed by order alone: a Group's all_reduce on one rank meets DDP's on another.
So each collective that is compared says also which one of its process group it is.

    world.all_reduce(x)       1 | dist.all_reduce(y)      1
    dist.all_reduce(y)        2 | world.all_reduce(x)     2     x is the first, and the second

gloo counts messages as well, of which ranks have different numbers: those are taken off. They come
by a ProcessGroup's own methods (calls/process_group_methods.py), or by torch's functional ones
(calls/functional_collectives.py). Those that a program hands to torch.ops.c10d, or to the backend
itself, do not come by, and count as collectives.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d


class HandOver:
    """What one process group has been handed. Any thread."""

    def __init__(self, gloo: Any) -> None:
        """Before the first message of this process: all of them are to be counted here."""
        self._number: Callable[[], int] = gloo._get_sequence_number_for_group
        self._lock = threading.Lock()
        self._num_messages = self._num_under_way = 0
        self._is_known = True

    @contextmanager
    def of_messages(self, number: int = 1) -> Iterator[None]:
        """Inside, so many messages are handed over.

        Where that raises, and gloo's number has not moved, none of them was; where it has moved,
        nobody knows from then on.
        """
        with self._lock:
            self._num_under_way += 1
            before = self._number()
        try:
            yield
        except BaseException:
            with self._lock:
                self._num_under_way -= 1
                self._is_known = self._is_known and self._number() == before
            raise
        with self._lock:
            self._num_under_way -= 1
            # A tensor without data goes nowhere.
            self._num_messages += min(number, self._number() - before)

    @property
    def so_far(self) -> tuple[int, int] | None:
        """Collectives and messages; None where nobody knows."""
        collectives = self.num_collectives
        return None if collectives is None else (collectives, self._num_messages)

    @property
    def num_collectives(self) -> int | None:
        """So far; None where nobody knows, as while another thread is handing over a message."""
        with self._lock:
            if not self._is_known or self._num_under_way:
                return None
            return self._number() - self._num_messages


_by_process_group: dict[dist.ProcessGroup, HandOver] = {}
# Two threads' first uses get one HandOver: with two, each would count the other's messages as
# collectives.
_adding = threading.Lock()


def to(process_group: object) -> HandOver | None:
    """What this one has been handed; None for what is no process group of gloo's."""
    if not isinstance(process_group, dist.ProcessGroup):
        return None
    known = _by_process_group.get(process_group)
    if known is None and (gloo := _gloo_of(process_group)) is not None:
        with _adding:
            known = _by_process_group.get(process_group)
            if known is None:
                known = _by_process_group[process_group] = HandOver(gloo)
    return known


def _gloo_of(process_group: dist.ProcessGroup) -> Any:
    """What carries its tensors on the CPU, where that is gloo; None where it is destroyed.

    However the program asked for it: by "gloo", "cpu:gloo", or by nothing.
    """
    if process_group not in c10d._world.pg_map:
        return None
    try:
        backend: Any = process_group._get_backend(torch.device("cpu"))
    except RuntimeError:
        return None  # there is none
    return backend if backend.name() == "gloo" else None


def messages(process_group: object, number: int, carry_out: Callable[[], Any]) -> Any:
    """The result of `carry_out`, which hands over so many messages."""
    handed = to(process_group)
    if handed is None:
        return carry_out()
    with handed.of_messages(number):
        return carry_out()


def forget(process_group: dist.ProcessGroup | None) -> None:
    """It is destroyed; None: the default one is, and all others with it."""
    if process_group is None:
        _by_process_group.clear()
    else:
        _by_process_group.pop(process_group, None)
