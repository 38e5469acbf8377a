"""What a rank does while it is graded: call the code under test, case by case, and keep records.

Nothing here judges. The driver does, from the records, the inputs that it made up itself and the
journals (judge.py).
"""

import inspect
import linecache
import os
import sys
import types
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import torch

from labkit.comm import Group
from labkit.grade.exchange import Arguments, Exchange, Record
from labkit.grade.gate import Gate
from labkit.grade.watched_group import WatchedGroup

REGION = "\x02case "  # regions in the journal that say which operations belong to which case
MARK = "\x02case "  # lines in the output that say what was printed when


class SubmissionError(Exception):
    """The code under test does not have the function that it should have."""


@dataclass(frozen=True)
class Job:
    """The code under test, and how it is run. Travels to every rank."""

    exchange: Exchange
    function: str
    source: str | None
    """Text of the learner's file, or None where `function_object` is given."""
    filename: str
    function_object: Callable[..., Any] | None
    allowed: tuple[str, ...]
    delays_s: tuple[tuple[float, ...], ...]
    """Longest sleep before an operation, by case and rank."""
    altered: tuple[tuple[int, int] | None, ...]
    """(rank, number of the message that it receives changed), by case."""


def attempt_cases(world: Group, job: Job) -> None:
    """Run on every rank: the code under test on all its cases. Raises what that code raises."""
    cases = job.exchange.take_arguments(world.rank)
    _meet(world)  # from here on no rank's inputs are on disk
    gate = Gate(job.allowed)
    group = WatchedGroup(world, gate, job.allowed)
    outputs: list[object] = []  # kept, so that no two can have the same memory by chance
    with gate:
        function = _load(job, len(cases[0]) + 1)
        for index, arguments in enumerate(cases):
            rank, number = job.altered[index] or (None, None)
            group.begin_case(
                job.delays_s[index][world.rank], number if rank == world.rank else None
            )
            with gate.opened():
                _meet(world)
            print(f"{MARK}{index}", flush=True)
            with world.region(f"{REGION}{index}"):
                record, error = _attempt(function, arguments, group, outputs)
            job.exchange.put_record(index, world.rank, record)
            if error is not None:
                raise error


def _meet(world: Group) -> None:
    """No rank is in the next case while another is in this one: messages cannot mix.

    An all-reduce of one number; gloo's barrier takes ten times as long.
    """
    token = torch.zeros(1)
    world.all_reduce(token, out=token)


def _attempt(
    function: Callable[..., Any],
    arguments: Arguments,
    group: WatchedGroup,
    outputs: list[object],
) -> tuple[Record, BaseException | None]:
    """One case. Catches everything, sys.exit too: the record comes first.

    outputs: of earlier cases; this one's is added.
    """
    output, error = None, None
    try:
        output = function(*arguments, group)
        group.end_case()
    except BaseException as raised:
        error = raised
    broken = group.gate.broken[0] if group.gate.broken else None
    tensor = output if _is_plain_tensor(output) else None
    record = Record(
        output=None if tensor is None else tensor.detach().as_subclass(torch.Tensor).clone(),
        output_type=type(output).__name__,
        arguments=[argument.detach() for argument in arguments],
        shares_memory=any(_share_memory(output, argument) for argument in arguments),
        raised="" if error is None else type(error).__name__,
        broken_rule="" if broken is None else type(broken).__name__,
        rule_message=str(broken or ""),
        rule_site=[] if broken is None else list(astuple(broken.site)),
        returned_before=any(_share_memory(output, earlier) for earlier in outputs),
    )
    outputs.append(output)
    return record, error


def _load(job: Job, num_arguments: int) -> Callable[..., Any]:
    function = job.function_object or _from_source(job)
    try:
        inspect.signature(function).bind(*range(num_arguments))
    except TypeError as error:
        raise SubmissionError(
            f"{job.function}{inspect.signature(function)} cannot be called with "
            f"{num_arguments} arguments: {error}; keep the signature of the stub"
        ) from None
    except ValueError:  # written in C, with a signature that nobody knows
        return function
    return function


def _from_source(job: Job) -> Callable[..., Any]:
    """Execute the learner's file as it was when `check` read it."""
    source = job.source or ""
    lines = source.splitlines(keepends=True)
    linecache.cache[job.filename] = (len(source), None, lines, job.filename)
    module = types.ModuleType("submission")
    module.__file__ = job.filename
    sys.modules["submission"] = module  # dataclasses look their module up
    sys.path.insert(0, os.path.dirname(job.filename))
    exec(compile(source, job.filename, "exec"), module.__dict__)
    function = getattr(module, job.function, None)
    if not callable(function):
        raise SubmissionError(
            f"{job.filename} defines no function {job.function}; keep the name of the stub"
        )
    return function


def _is_plain_tensor(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
    )


def _share_memory(one: object, other: object) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if one is other:
        return True
    if not _is_plain_tensor(one) or not _is_plain_tensor(other) or not one.numel():
        return False
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
