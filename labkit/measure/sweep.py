"""Time all-reduces over a range of sizes, side by side on the same ranks.

Times on a shared machine wander by tens of percent within a minute. Ratios of medians of calls that
took turns do not: what slows one candidate slows its neighbour too. So `alternate` lets candidates
take turns on the ranks of one run.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from labkit import arguments
from labkit.calc.units import parse_quantity, size_text
from labkit.comm import Group, Topology
from labkit.launch import run
from labkit.measure.algorithms import Algorithm, chosen
from labkit.measure.measured import Measured

Call = Callable[[], object]


_ITEMSIZE = 4  # float32
_LARGEST = 2**32
# Values of ranks whose partial sums are all whole numbers that float32 holds exactly.
_PERIOD = 251


def collectives(
    sizes: Iterable[int | str],
    world_size: int,
    algorithms: Any = ("ring", "gloo"),
    *,
    repetitions: int = 11,
    topology: Topology | None = None,
    timeout: float = 300,
) -> Measured:
    """Measure all-reduces of float32: seconds, algbw and busbw per size, and what follows.

        measured = labkit.measure.collectives(["1 KiB", "64 KiB", "4 MiB"], 4, ["ring", "tree"])
        print(measured.table())          # times, fitted alpha and beta, crossovers
        measured.draw()                  # the same as curves

    sizes: bytes of the tensor on each rank, as numbers or as text. algorithms: names ("ring",
    "gloo", ...; a wrong one lists all of them), your own functions fn(x, group), or
    measure.Algorithm where yours has a formula. repetitions: calls of each per size, of which the
    median counts. topology: a labkit.Topology to measure on throttled links. timeout: of the run.

    Algorithms take turns, after a barrier each, and a call takes as long as its slowest rank. They
    work in place where they can. Each result is compared with the sum before the first is timed.

    Raises ValueError or TypeError for arguments that cannot be measured, RankError if an
    algorithm raises or returns something else than the sum, and what labkit.run raises.
    """
    found, nbytes = chosen(algorithms), checked_sizes(sizes)
    _check_call(found, world_size, repetitions, is_throttled=topology is not None)
    result = run(
        times_on_ranks,
        world_size,
        (found, nbytes, repetitions),
        timeout=timeout,
        device="cpu",
        topology=topology,
    )
    by_size = {size: slowest([own[size] for own in result.values]) for size in nbytes}
    samples = {one.name: {size: by_size[size][one.name] for size in nbytes} for one in found}
    return Measured(world_size, tuple(nbytes), tuple(found), samples, topology)


def _check_call(
    algorithms: Sequence[Algorithm], world_size: int, repetitions: int, *, is_throttled: bool
) -> None:
    if world_size < 2:
        raise ValueError(f"world_size={world_size}: nothing travels; measure 2 ranks or more")
    arguments.whole("repetitions", repetitions, "calls are counted, from 1; try 11")
    unthrottled = [one.name for one in algorithms if not one.is_throttled]
    if is_throttled and unthrottled:
        raise ValueError(
            f"{', '.join(unthrottled)} would not be slowed down by a topology, only send and recv "
            f"are: measure without {'it' if len(unthrottled) == 1 else 'them'}, or without topology"
        )


def checked_sizes(sizes: Iterable[int | str]) -> list[int]:
    """Bytes as numbers, each once, in ascending order.

    Raises ValueError for an invalid size, or part of a float32; TypeError for anything but a list.
    """
    if isinstance(sizes, str):
        raise TypeError(f'sizes={sizes!r}: give a list of them, such as [1024, "64 KiB", "4 MiB"]')
    found = sorted({_size(each) for each in sizes})
    if not found:
        raise ValueError('sizes is empty: give one or more, such as ["1 KiB", "64 KiB", "4 MiB"]')
    return found


def _size(size: int | str) -> int:
    value: float = size  # type: ignore[assignment]
    if isinstance(size, str):
        value, dimension = parse_quantity(size)
        if dimension not in ("", "bytes"):
            raise ValueError(f"{size!r} is no size: give bytes, such as 65536 or '64 KiB'")
    if not _ITEMSIZE <= value <= _LARGEST:
        raise ValueError(
            f"a tensor of {size!r} bytes cannot be measured: "
            f"from {_ITEMSIZE} B to {size_text(_LARGEST)}"
        )
    if value % _ITEMSIZE:
        raise ValueError(
            f"{size!r} is no whole number of float32: {_ITEMSIZE} bytes each, so try "
            f"{int(value) // _ITEMSIZE * _ITEMSIZE}"
        )
    return int(value)


def times_on_ranks(
    world: Group, algorithms: Sequence[Algorithm], sizes: Sequence[int], repetitions: int
) -> dict[int, dict[str, list[float]]]:
    """Return on every rank its seconds of every call, by size and algorithm.

    Raises ValueError if an algorithm returns something else than the sum: it may be quick.
    """
    seconds = {}
    for nbytes in sizes:
        pattern = torch.arange(nbytes // _ITEMSIZE, device=world.device) % _PERIOD
        x = (pattern + world.rank).float()
        total = (pattern * world.size + world.size * (world.size - 1) // 2).float()
        buffer = x.clone()
        for one in algorithms:
            buffer.copy_(x)
            _check(one, one.reduce(buffer, world), total)
        seconds[nbytes] = alternate(
            world,
            {one.name: partial(one.reduce, buffer, world) for one in algorithms},
            repetitions,
            before=partial(buffer.copy_, x),
        )
    return seconds


def _check(algorithm: Algorithm, result: Any, total: torch.Tensor) -> None:
    if not isinstance(result, torch.Tensor) or result.shape != total.shape:
        got = tuple(result.shape) if isinstance(result, torch.Tensor) else repr(result)
        raise ValueError(
            f"{algorithm.name} returned {got}: to be measured, an all-reduce returns the sum, "
            f"{tuple(total.shape)} here"
        )
    wrong = int((result != total).sum())
    if wrong:
        raise ValueError(
            f"{algorithm.name} is not the sum over the ranks in {wrong:,} of {total.numel():,} "
            "elements; a wrong all-reduce has no time worth comparing"
        )


def alternate(
    world: Group,
    candidates: Mapping[str, Call],
    repetitions: int,
    *,
    before: Call | None = None,
) -> dict[str, list[float]]:
    """Return seconds of every call of each candidate on this rank; `slowest` joins all ranks'.

    candidates: by name, the same on every rank. Each is called `repetitions` times and once more
    to warm up, after a barrier; who goes first moves on from round to round. before: called ahead
    of each barrier, outside of the time. TypeError and ValueError, before any call: no whole number
    of repetitions from 1, no functions to call.
    Wire: besides the calls a barrier for each.
    """
    allowed = "a median needs at least 1 call, better 11"
    repetitions = arguments.whole("repetitions", repetitions, allowed)
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(repetitions + 1):
        for turn in range(len(names)):
            name = names[(repetition + turn) % len(names)]
            if before is not None:
                before()
            world.barrier()
            began = time.perf_counter()
            candidates[name]()
            if world.device.type == "cuda":
                torch.cuda.synchronize(world.device)  # nccl returns before the bytes have moved
            if repetition:  # the first only warms up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def slowest(by_rank: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """Join what `alternate` returned on each rank: a call takes as long as its slowest rank.

    ValueError if there is no rank.
    """
    return {
        name: [max(times) for times in zip(*(seconds[name] for seconds in by_rank), strict=True)]
        for name in by_rank[0]
    }
