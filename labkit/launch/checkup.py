"""The checks of `labkit doctor`: what this machine can do for the lab.

The last check is a real run: two ranks that meet, add and return prove more than the parts.
"""

import contextlib
import os
import platform
import re
import threading
import time
from collections.abc import Callable, Iterable
from importlib import metadata

import torch

from labkit.comm import Group
from labkit.launch import resources
from labkit.launch.errors import RunTimeout
from labkit.launch.machine import look
from labkit.launch.rank_process import warm_up
from labkit.launch.resources import Finding, Level, gpus, temporary_files
from labkit.launch.run import launch

_LIMIT_S = 60.0
_MORE_PATIENCE = 2.0
_IMPORTS = "<frozen importlib"
_SLOW_S = 1.0  # it takes 0.05 s; a loaded laptop, 0.3
_SHOWN = ("torch", "labkit", "jupyterlab")
_REQUIREMENT = re.compile(r"([\w.-]+)\s*(?:>=\s*([\d.]+))?.*")
VersionOf = Callable[[str], str]

__all__ = ["Finding", "Level", "check_up"]


def check_up() -> list[Finding]:
    """Return every finding, in reading order; the last one is of a real run of two ranks.

    Takes about 3 s, most of it torch's import in the fork server, and at most about 20 s; 60 s if
    ranks import modules all that time.
    """
    with contextlib.suppress(Exception):
        warm_up()  # it imports torch meanwhile; if it cannot, smoke_run reports it
    machine = look()
    return [
        versions(),
        packages(),
        resources.cores(machine),
        resources.memory(machine),
        resources.shared_memory(),
        temporary_files(),
        resources.open_files(machine),
        resources.processes(machine),
        gpus(),
        smoke_run(),
    ]


def smoke_run(pair: Callable[[], list[float]] | None = None, limit_s: float = _LIMIT_S) -> Finding:
    """Run two ranks twice: the first time starts the fork server, the second is what runs cost.

    pair: runs the two ranks and returns their values. limit_s: seconds to wait for both runs, in a
    thread: a fork server that hangs must not hang the doctor. If ranks were still importing, they
    get more time, once.
    """
    times_s, faults = _timed(pair, limit_s)
    if _were_importing(faults):
        times_s, faults = _timed(pair, _MORE_PATIENCE * limit_s)
    return _judged(times_s, faults)


def _timed(
    pair: Callable[[], list[float]] | None, limit_s: float
) -> tuple[list[float], list[str | Exception]]:
    """Return how long two runs took, and what was wrong with them."""
    times_s: list[float] = []
    faults: list[str | Exception] = []

    def attempt() -> None:
        try:
            for _ in range(2):
                began_s = time.monotonic()
                values = (pair or (lambda: _run_two_ranks(limit_s)))()
                times_s.append(time.monotonic() - began_s)
                if values != [3.0, 3.0]:
                    faults.append(f"1 + 2 over two ranks gave {values}")
        except Exception as error:
            faults.append(error)

    thread = threading.Thread(target=attempt, name="smoke run", daemon=True)
    thread.start()
    thread.join(limit_s + 1)
    if thread.is_alive():
        faults.append(f"not done after {limit_s + 1:g} s")
    return times_s, faults


def _were_importing(faults: list[str | Exception]) -> bool:
    """Return whether the timeout came while a rank imported modules."""
    stacks = [each.stacks for each in faults[:1] if isinstance(each, RunTimeout)]
    return any(_IMPORTS in stack for of_run in stacks for stack in of_run)


def _judged(times_s: list[float], faults: list[str | Exception]) -> Finding:
    if _were_importing(faults):
        return Finding(
            "a run of 2 ranks",
            f"{faults[0]}".partition("\n")[0],
            Level.ERROR,
            "the ranks were still importing modules: nothing forbids them to run, but this machine "
            "is too busy, or its disk too slow, to start them in time",
            f"close what else uses the {os.cpu_count()} cores{_load()}, and try again; if Python "
            "is on a network drive, install it on a local disk",
        )
    if faults:
        fault = faults[0]
        return Finding(
            "a run of 2 ranks",
            fault if isinstance(fault, str) else f"{type(fault).__name__}: {fault}",
            Level.ERROR,
            "this is what every notebook and every check of an exercise does",
            "look at the other findings first, and at what security software forbids: ranks are "
            "processes that talk over the loopback interface, which must be up. If it is none of "
            "these, please report it with all of this text",
        )
    first, warm = times_s
    text = f"{warm:.2f} s ({first:.1f} s the first time, which imports torch)"
    if warm < _SLOW_S:
        return Finding("a run of 2 ranks", text)
    return Finding(
        "a run of 2 ranks",
        text,
        Level.WARNING,
        "it should take about 0.05 s, and every cell that runs ranks takes that much longer",
        f"close what else uses the {os.cpu_count()} cores{_load()}; if TMPDIR is on a network "
        "drive, use a local disk",
    )


def _run_two_ranks(timeout_s: float) -> list[float]:
    return launch(_sum_of_ranks, 2, [()], timeout=timeout_s, device="cpu", echo=False).values


def _sum_of_ranks(world: Group) -> float:
    return float(world.all_reduce(torch.tensor(world.rank + 1.0)))


def _load() -> str:
    try:
        return f" (on average {os.getloadavg()[0]:.1f} programs wanted one in the last minute)"
    except OSError:
        return ""


def versions(version_of: VersionOf = metadata.version) -> Finding:
    """Return the versions in one line, for a bug report."""
    found = [f"{name} {_version(name, version_of) or 'missing'}" for name in _SHOWN]
    python = f"Python {platform.python_version()}"
    return Finding("versions", ", ".join([python, *found, platform.platform()]))


def packages(
    version_of: VersionOf = metadata.version, required: Iterable[str] | None = None
) -> Finding:
    """Check that all packages of pyproject.toml's extra `lab` are here and new enough.

    required: requirements such as `rich>=13.7; extra == "lab"`; labkit's own by default.
    """
    lines = list(_own_requirements() if required is None else required)
    if not lines:
        return Finding(
            "packages", "labkit is not installed as a package, so nothing to compare with"
        )
    needed = [line for line in lines if "extra ==" not in line or re.search("extra == .lab", line)]
    faults = [fault for line in needed if (fault := _fault(line, version_of))]
    if not faults:
        return Finding("packages", f"all {len(needed)} that the lab needs")
    return Finding(
        "packages",
        "; ".join(faults),
        Level.WARNING,
        "notebooks, pictures or commands that use them fail; labkit.run itself needs only torch "
        "and cloudpickle",
        'make lab (or, in an environment of your own, pip install "labkit[lab]")',
    )


def _fault(requirement: str, version_of: VersionOf) -> str:
    """Return what is wrong with one package; empty where nothing is."""
    match = _REQUIREMENT.match(requirement)
    if match is None:
        return ""
    name, least = match.groups()
    version = _version(name, version_of)
    if version is None:
        return f"{name} is missing"
    if least and _numbers(version) < _numbers(least):
        return f"{name} is {version}, older than {least}"
    return ""


def _version(name: str, version_of: VersionOf) -> str | None:
    try:
        return version_of(name)
    except metadata.PackageNotFoundError:
        return None


def _own_requirements() -> list[str]:
    try:
        return metadata.requires("labkit") or []
    except metadata.PackageNotFoundError:
        return []


def _numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu as (2, 13, 0): enough to compare with a least version."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))
