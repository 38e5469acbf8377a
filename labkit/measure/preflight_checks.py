"""Check links, arithmetic, disks and clocks on a job's own ranks, before the job starts.

    def main(world):
        checked = labkit.measure.preflight(world, "/checkpoints")
        print(checked.table())                   # the same on every rank
        if not checked.is_ready:
            raise SystemExit(1)                  # checked.findings: check, ranks, figures

    pair by pair     messages there and back       bandwidth of every pair
    all at once      a product of known result     silent corruption, FLOP/s
    one per host     write, fsync                  speed of the disk, free space
    0 with each      round trips with time()       offset of the clock

A rank, pair or host is slow compared with the median (of an even number the higher one, so that of
two hosts the slow one is named). A comparison cannot show a fault that all of them share.

On several hosts: `labkit.save_payload("check.payload", labkit.measure.preflight)`, then torchrun
with `-m labkit.launch.payload check.payload --out runs/check` on each host, and
`Run.load("runs/check", trust=True).values[0]`.

Papers: Hochschild et al., "Cores that don't count", HotOS 2021 (silent corruption); Freivalds,
"Probabilistic machines can use less running time", 1977 (the check of a product); Cristian,
"Probabilistic clock synchronization", Distributed Computing 3, 1989.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, median_high
from typing import Any

import torch

from labkit.calc.units import quantity_text, seconds_text
from labkit.checkpoint.disk import BLOCK, Disk
from labkit.checkpoint.plain_data import gather_plain
from labkit.comm import Group, Link, Topology
from labkit.measure.measured import aligned
from labkit.measure.slow_links import pairs_on_rank, rounds_of_pairs

SLOW = {"cpu": 3.0, "cuda": 1.5}
"""A link, a disk or a rank is slow below the median over this. Ranks on a CPU may share cores."""
DISK_BYTES_PER_S = 10e6
"""A slower disk is a fault, even if all disks are slow."""
CLOCK_S = 0.05
"""Most seconds by which clocks may differ. NTP keeps them within some milliseconds."""
_MESSAGE_BYTES = {"cpu": 2**18, "cuda": 2**24}
_MATRIX = {"cpu": (512, torch.float32), "cuda": (4096, torch.bfloat16)}
_BLOCKS, _TRIPS, _PASSES = 8, 10, 3
_DIMENSIONS = {
    "link": "bytes/s", "speed": "FLOP/s", "product": "", "disk": "bytes/s", "space": "bytes",
    "clock": "seconds", "clock step": "seconds",
}  # fmt: skip

Ranks = tuple[int, ...]
"""One rank, or the two of a pair. Of a disk: the rank that wrote for its host."""


@dataclass(frozen=True)
class Finding:
    """A measured value outside the expected range."""

    check: str
    """link, speed, product, disk, space, clock or clock step."""
    ranks: Ranks
    measured: float
    expected: float
    """At least; of clocks: at most; of a product's element: exactly."""
    note: str = ""

    def __str__(self) -> str:
        dimension = _DIMENSIONS[self.check]
        figures = (self.measured, self.expected)
        texts = [quantity_text(x, dimension) if dimension else f"{x:.9g}" for x in figures]
        bound = {"seconds": "at most ", "": ""}.get(dimension, "at least ")
        ranks = " and ".join(map(str, self.ranks))
        note = f" ({self.note})" if self.note else ""
        return f"{self.check}, rank {ranks}: {texts[0]}, expected {bound}{texts[1]}{note}"


@dataclass(frozen=True)
class RankCheck:
    """The measurements of one rank."""

    host: str
    flops_per_s: float
    num_products: int
    num_wrong: int
    first_wrong: tuple[int, int, int, float, float] | None
    """Number of the product, row and column in it, the value there and the exact one."""
    disk_bytes_per_s: float | None
    """Speed of the disk. None: another rank wrote for this host. 0: the write failed."""
    free_bytes: int | None
    """Free space; None also if it is unknown."""
    disk_error: str
    """Error of a failed write; "" if it succeeded."""
    clock_step_s: float
    """Seconds that time() moved further than monotonic() meanwhile, which means the clock was
    set."""
    clock_s: float
    """Seconds ahead of rank 0's clock, +- clock_uncertainty_s: half of the round trip."""
    clock_uncertainty_s: float


@dataclass(frozen=True)
class Preflight:
    """The measurements of all ranks, and the findings."""

    ranks: list[RankCheck]
    links: dict[Ranks, float]
    """Bytes per second of each pair, one way."""
    findings: list[Finding]

    @property
    def is_ready(self) -> bool:
        """True if there are no findings."""
        return not self.findings

    def table(self) -> str:
        """Return a row per rank, then the findings, as aligned plain text."""
        rows = [["rank", "host", "products", "speed", "write/s", "free", "clock", "link"]]
        for rank, each in enumerate(self.ranks):
            links = [x for pair, x in self.links.items() if rank in pair]
            row = [str(rank), each.host, f"{each.num_wrong} of {each.num_products} wrong"]
            row += [quantity_text(each.flops_per_s, "FLOP/s")]
            figures = (each.disk_bytes_per_s, each.free_bytes)
            row += ["" if x is None else quantity_text(x, "bytes") for x in figures]
            row += [f"{1e3 * each.clock_s:.2f} +- {1e3 * each.clock_uncertainty_s:.2f} ms"]
            rows.append([*row, quantity_text(median_high(links), "bytes/s") if links else ""])
        return "\n".join([aligned(rows), "", *map(str, self.findings)])

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        links = [[*pair, speed] for pair, speed in self.links.items()]
        return {"is_ready": self.is_ready, **asdict(self), "links": links}


def preflight(
    world: Group, folder: str | Path | None = None, burn_in_s: float = 2.0, free_bytes: float = 1e9
) -> Preflight:
    """Measure on all ranks of `world`, and return the same on each of them.

    folder: where checkpoints go; None: that of temporary files. burn_in_s: seconds of products.
    free_bytes: required in the folder.
    Wire: messages of every pair, round trips of rank 0 with each other one, two gather_plain.
    """
    ahead_s = time.time() - time.monotonic()
    hosts = gather_plain(socket.gethostname(), world)
    links = _links(world, hosts)
    products = _burn_in(world, burn_in_s)
    has_disk = hosts.index(hosts[world.rank]) == world.rank
    disk = _write(Path(folder or tempfile.gettempdir())) if has_disk else (None, None, "")
    clocks = _clocks(world)
    step_s = time.time() - time.monotonic() - ahead_s
    everyone = gather_plain([links, clocks, [*products, *disk, step_s]], world)
    clocks = everyone[0][1]
    ranks = [RankCheck(host, *own, *at) for host, (_, _, own), at in zip(hosts, everyone, clocks)]
    all_links: dict[Ranks, float] = {(a, b): x for rows, _, _ in everyone for a, b, x in rows}
    times = SLOW[world.device.type]
    found = _of_links(all_links, hosts, times) + _of_ranks(ranks, times, free_bytes)
    return Preflight(ranks, all_links, found)


def _slow(check: str, values: dict[Ranks, float], times: float, least: float = 0) -> list[Finding]:
    """Return a finding for each value below the median over `times`, or below `least`."""
    bound = max(median_high(values.values()) / times, least) if values else 0
    return [Finding(check, ranks, x, bound) for ranks, x in values.items() if x < bound]


def _of_links(links: dict[Ranks, float], hosts: list[str], times: float) -> list[Finding]:
    """Return ranks whose median link is slow, and slow pairs of the others.

    Links inside hosts are compared with each other, and so are those between hosts.
    """
    found = []
    for inside in (True, False):
        own = {(a, b): x for (a, b), x in links.items() if (hosts[a] == hosts[b]) is inside}
        of_rank = defaultdict[Ranks, list[float]](list)
        for pair, x in own.items():
            for rank in pair:
                of_rank[(rank,)].append(x)
        usual = {rank: median_high(speeds) for rank, speeds in of_rank.items()}
        slow = _slow("link", usual, times) if len(usual) > 2 else []
        named = {rank for each in slow for rank in each.ranks}
        found += slow + _slow("link", {r: x for r, x in own.items() if not named & {*r}}, times)
    return found


def _of_ranks(ranks: list[RankCheck], times: float, free_bytes: float) -> list[Finding]:
    speeds, disks = dict[Ranks, float](), dict[Ranks, float]()
    others = []
    usual_s = (
        median(x.clock_s for x in ranks) if len(ranks) > 2 else 0.0
    )  # with two clocks, rank 0's
    for r, x in enumerate(ranks):
        speeds[(r,)] = x.flops_per_s
        if x.first_wrong:
            number, row, column, got, exact = x.first_wrong
            where = f"row {row}, column {column} of product {number}; {x.num_wrong} are wrong"
            others.append(Finding("product", (r,), got, exact, where))
        if x.disk_error:
            others.append(Finding("disk", (r,), 0.0, DISK_BYTES_PER_S, x.disk_error))
        elif x.disk_bytes_per_s is not None:
            disks[(r,)] = x.disk_bytes_per_s
        if x.free_bytes is not None and x.free_bytes < free_bytes:
            others.append(Finding("space", (r,), x.free_bytes, free_bytes))
        if abs(x.clock_s - usual_s) > CLOCK_S + x.clock_uncertainty_s:
            within = f"+- {seconds_text(x.clock_uncertainty_s)}"
            others.append(Finding("clock", (r,), x.clock_s - usual_s, CLOCK_S, within))
        if abs(x.clock_step_s) > CLOCK_S:
            others.append(Finding("clock step", (r,), x.clock_step_s, CLOCK_S))
    slow = _slow("speed", speeds, times) + _slow("disk", disks, times, DISK_BYTES_PER_S)
    return slow + others


def _links(world: Group, hosts: list[str]) -> list[tuple[int, int, float]]:
    """Return ranks and bytes per second of each pair whose lower rank this is.

    If hosts are equal, pairs that are measured at once share no host's link.
    """
    num, nbytes = len(set(hosts)), _MESSAGE_BYTES[world.device.type]
    topology = None
    if num > 1 and world.size % num == 0:
        topology = Topology(hosts=num, ranks_per_host=world.size // num, slow=Link(1))
    rounds = rounds_of_pairs(world.size, topology)
    passes = [pairs_on_rank(world, rounds, nbytes, repetitions=3) for _ in range(_PASSES)]
    seconds = {pair: min(each[pair] for each in passes) for pair in passes[0]}
    return [(a, b, nbytes / x) for (a, b), x in seconds.items() if a == world.rank]


def _burn_in(world: Group, seconds: float) -> tuple[Any, ...]:
    """Multiply the same two matrices again and again; every product is checked.

    Their elements are -1, 0 and 1, and those of the product at most 256, so that bfloat16 holds
    every one exactly, in any order of the sums. Freivalds' check: (a b) v = a (b v) for random
    whole v, where a (b v) takes n**2 steps in int64 on the CPU.

    Returns RankCheck's flops_per_s, num_products, num_wrong and first_wrong.
    """
    side, dtype = _MATRIX[world.device.type]
    generator = torch.Generator().manual_seed(0)
    exact_a, exact_b = (torch.randint(-1, 2, (side, side), generator=generator) for _ in range(2))
    exact_v = torch.randint(1, 2**20, (side,), generator=generator)
    a, b = (x.to(world.device, dtype) for x in (exact_a, exact_b))
    v, abv = (x.to(world.device).double() for x in (exact_v, exact_a @ (exact_b @ exact_v)))
    times_s, num_wrong, first_wrong = list[float](), 0, None
    world.barrier()
    end_s = time.perf_counter() + seconds
    while len(times_s) < 4 or time.perf_counter() < end_s:
        began_s = time.perf_counter()
        product = torch.mm(a, b)
        if product.is_cuda:
            torch.cuda.synchronize(product.device)
        times_s.append(time.perf_counter() - began_s)
        wrong = (product.double() @ v != abv) | (product != product.trunc()).any(1)
        if wrong.any():  # which also waits for the GPU
            num_wrong += 1
            row = int(wrong.nonzero()[0])
            exact = exact_a[row] @ exact_b
            # Column 0, with equal numbers, if the check itself was computed wrongly.
            column = int((product[row].cpu().double() != exact).int().argmax())
            here = float(product[row, column]), float(exact[column])
            first_wrong = first_wrong or (len(times_s), row, column, *here)
    flops_per_s = 2 * side**3 / median(times_s[1:])  # the first only warms up
    return flops_per_s, len(times_s), num_wrong, first_wrong


def _write(folder: Path) -> tuple[float, int | None, str]:
    """Return bytes per second of a new file with fsync, free bytes, and the error if it fails."""
    free, data = None, os.urandom(BLOCK) * _BLOCKS
    path = folder / f"labkit-preflight-{os.getpid()}"
    try:
        free = shutil.disk_usage(folder).free
        began_s = time.perf_counter()
        Disk().write_whole(path, data)
        return len(data) / (time.perf_counter() - began_s), free, ""
    except OSError as error:
        return 0.0, free, f"{error.strerror}: {folder}"
    finally:
        with suppress(OSError):
            path.unlink()


def _clocks(world: Group) -> list[tuple[float, float]]:
    """Return every clock_s and clock_uncertainty_s on rank 0, by the fastest of some round trips.

    0  asked ----.            .---- answered      the other clock was read somewhere between
    1             `--- now --'                    the two: (asked + answered) / 2, +- half
    """
    now, found = torch.zeros(1, dtype=torch.float64, device=world.device), [(0.0, 0.0)]
    for peer in range(1, world.size):
        world.barrier()  # it is not busy with another check
        trips = []
        for _ in range(_TRIPS if world.rank in (0, peer) else 0):
            if world.rank == 0:
                asked_s = time.time()
                world.send(now, peer)
                theirs_s, answered_s = float(world.recv(now, peer)), time.time()
                trips.append((answered_s - asked_s, theirs_s - (asked_s + answered_s) / 2))
            else:
                world.recv(now, 0)
                world.send(now.fill_(time.time()), 0)
        if trips:
            took_s, offset_s = min(trips)
            found.append((offset_s, took_s / 2))
    return found
