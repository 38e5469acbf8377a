"""A rank of a session: it runs one command after another, and keeps its variables in between.

    fork server -> session_main: as rank_main, up to "ready" and "go"
    driver -> a command (a cell): run in the rank's namespace -> Answered or Raised
    driver closes the lifeline -> the rank exits

SIGINT interrupts a command as Ctrl-C would, and does nothing between commands. A rank that is
blocked in C++ does not hear it; the driver ends such ranks.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import FrameType, ModuleType
from typing import Any

import torch

from labkit.comm import Group
from labkit.launch import payload
from labkit.launch.rank import (
    Raised,
    RankSpec,
    Returned,
    flush,
    leave_if_forked,
    measured,
    raised,
    settle_in,
)
from labkit.launch.session.command import Command

_MAX_VALUE_BYTES = 64 * 2**20
_MAX_TEXT = 20_000


@dataclass(frozen=True)
class Answered(Returned):
    """A command came to its end. Its value is in the session's folder where it can travel."""

    text: str | None = None
    """The value as it prints; None where there is none."""
    has_sent: bool = False


def session_main(
    spec: RankSpec, control: Connection, output: Connection, lifeline: Connection
) -> None:
    """The whole life of a rank of a session; never returns."""
    settle_in(spec, output, lifeline)
    process_id = os.getpid()
    interrupts = _Interrupts()
    try:
        spec.program()  # for the driver's environment and import path: there is no function
        desk = _Desk(spec, spec.connected(), interrupts)
        control.send("ready")
        control.recv()  # "go"
        report: Returned | Raised = measured(lambda: None, spec.device)[1]
        while True:
            flush()
            control.send(report)
            report = desk.perform(control.recv())
            leave_if_forked(process_id)
    except (EOFError, OSError):
        pass  # the driver has closed the pipe
    except BaseException as error:
        control.send(raised(error))
    threading.Event().wait()  # until the lifeline ends


class _Desk:
    """Where commands are worked off, and the variables that they leave."""

    def __init__(self, spec: RankSpec, world: Group, interrupts: _Interrupts) -> None:
        """The variables are those of a module of their own, which pickle can find."""
        self._spec, self._world, self._interrupts = spec, world, interrupts
        main = sys.modules["__main__"] = ModuleType("__main__")
        self._namespace = main.__dict__
        self._namespace.update(
            world=world,
            rank=world.rank,
            world_size=world.size,
            torch=torch,
            labkit=sys.modules["labkit"],  # this module is in it
        )

    def perform(self, command: Command) -> Answered | Raised:
        """Run one command; its value goes to the session's folder."""
        try:
            return self._interrupts.during(lambda: self._answer(command))
        except BaseException as error:
            return raised(error)

    def _answer(self, command: Command) -> Answered:
        process_id = os.getpid()
        value, report = measured(lambda: command.run(self._namespace), self._spec.device)
        leave_if_forked(process_id)
        self._world.compare_what_is_left()
        report = dataclasses.replace(report, lateness=self._world.take_lateness())
        if value is None:
            return Answered(**vars(report))
        return Answered(**vars(report), text=_cut(repr(value)), has_sent=self._send(value))

    def _send(self, value: Any) -> bool:
        """Leave the value for the driver; whether it can travel."""
        try:
            dumped = payload.dump_value(value)
        except Exception:
            return False
        if len(dumped) > _MAX_VALUE_BYTES:
            return False
        self._spec.directory.of_rank(self._spec.rank, "value").write_bytes(dumped)
        return True


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}... ({len(text)} characters)"


class _Interrupts:
    """SIGINT as KeyboardInterrupt, while a command runs and only once."""

    def __init__(self) -> None:
        self._is_wanted = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._is_wanted:
            self._is_wanted = False
            raise KeyboardInterrupt

    def during(self, work: Callable[[], Answered]) -> Answered:
        """`work()`, which SIGINT interrupts."""
        signal.signal(signal.SIGINT, self._interrupt)  # the last command may have set its own
        self._is_wanted = True
        try:
            return work()
        finally:
            self._is_wanted = False
