"""Call the code under test on each rank, and record what it does.

    driver: cases by rank  ->  attempt_cases(world, job): load the code, then for each case
                               call it with a WatchedGroup and write a RankObservation into the
                               folder
    driver: reads the records, and the journals of a run that did not end

The ranks never have the expected results. Each case is recorded when it ends, so a crash or a hang
leaves the records of the cases before it.
"""

from __future__ import annotations

import itertools
import pickle
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from labkit.comm import Group
from labkit.grade.observed import RankObservation, plain, tensors_in
from labkit.grade.verdict import Finding, Outcome
from labkit.grade.watched import BrokenRule, Job, Watch, learner_site
from labkit.launch import payload

_MAX_YIELDED = 100_000


def attempt_cases(world: Group, job: Job, cases: Sequence[tuple[Any, ...]]) -> None:
    """Run the code under test on all its cases; every rank calls this. Raises that code's error."""
    _close(job.closed)
    watch = Watch(world, job)
    # Results by address. Kept alive, so that no later result gets the same memory by chance.
    earlier: dict[int, Any] = {}
    with job.records(world.rank).open("wb") as records:
        for index, args in enumerate(cases):
            if job.codes[index] is not job.codes[index - 1]:
                earlier.clear()
            own = pickle.loads(payload.dumps(args))  # a copy: the code may change its arguments
            watch.begin_case(index, own)
            if world.size > 1:
                # A barrier: messages of two cases cannot mix. No exercise sends three uint8.
                with world.label(MEETING):
                    world.all_reduce(torch.zeros(3, dtype=torch.uint8))
            print(f"{MARK}{index}", flush=True)
            # Under one label: the grader, not the mismatch detector, reports calls out of order.
            with world.region(f"{MARK}{index}"), world.label(UNDER_TEST):
                seen, error = _attempt(watch, own, earlier)
            records.write(_pickled(seen))
            records.flush()
            if error is not None and not job.continue_after_failure:
                raise error


MARK = "\x02case "
"""Marks the start of a case: with its number, a line of the output and a region of the journal."""
UNDER_TEST = "the function under test"
MEETING = "\x02between cases"
"""Label of the all-reduce that serves as a barrier between two cases."""


def _attempt(
    watch: Watch, args: tuple[Any, ...], earlier: dict[int, Any]
) -> tuple[RankObservation, BaseException | None]:
    seen = RankObservation()
    error: BaseException | None = None
    try:
        with watch:
            output = watch.job.call(watch, args)
            if isinstance(output, Iterator):
                output = list(itertools.islice(output, _MAX_YIELDED))
            watch.require_all_waited()
        parts, given = _by_address(output), _by_address(args)
        seen.is_input, seen.is_earlier = bool(parts.keys() & given), bool(parts.keys() & earlier)
        earlier |= parts
        seen.output, seen.args, seen.returned = plain(output), plain(args), True
    except BrokenRule as broken:
        error = broken
        how, where = str(broken), broken.site
        seen.broken_rule = Finding(Outcome.WRONG, broken.name, how, hint=3, where=where)
    except SystemExit as end:  # a launch would take exit() for success
        error = RuntimeError(f"the code ends its process: exit({end.code})").with_traceback(
            end.__traceback__
        )
    except BaseException as raised:
        error = raised
    if error is not None:
        notes = getattr(error, "__notes__", [])
        seen.error = ", ".join([f"{type(error).__name__}: {error}", *notes])
    seen.events = watch.events
    seen.peak_bytes, seen.largest = watch.peak_bytes, watch.largest
    return seen, error


class Closed(types.ModuleType):
    """Replace a module that contains the answer: looking up any name in it raises BrokenRule."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__path__", "__all__"):
            raise AttributeError(name)  # inspect reads this in every module
        what = self.__name__ if name.startswith("__") else f"{self.__name__}.{name}"
        raise BrokenRule(
            "calls the answer itself",
            f"{what} has the answer, or most of it; write it yourself",
            learner_site(),
        )


def _close(names: Sequence[str]) -> None:
    """Make importing from these modules and calling them raise BrokenRule from now on."""
    inside = tuple(f"{name}." for name in names)
    for loaded in [each for each in sys.modules if each.startswith(inside)]:
        sys.modules[loaded] = Closed(loaded)
    for name in names:
        sys.modules[name] = Closed(name)
        parent, _, attribute = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], attribute, sys.modules[name])


def _by_address(value: Any) -> dict[int, torch.Tensor]:
    """Return all tensors that have elements, by the address of their memory."""
    return {x.untyped_storage().data_ptr(): x for x in tensors_in(value) if x.numel()}


def _pickled(seen: RankObservation) -> bytes:
    try:
        return payload.dumps(seen)
    except Exception:  # a lock, a generator, a module: nothing that can be compared
        seen.output = f"<{type(seen.output).__name__}>"
        seen.args = ()
        return payload.dumps(seen)
