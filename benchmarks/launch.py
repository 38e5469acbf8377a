"""Measure how soon four ranks are ready, against torch.multiprocessing.spawn, and a run's cost.

Ready: the process group is up and one all_reduce is done on every rank, counted from the call.
Then the milliseconds in which a rank reads the text that it trains on. A second table has the
processor time of runs that do nothing (Linux only): of the driver, of the fork server and of the
ranks, and the pages that each process touches first or copies.
Run it with `python benchmarks/launch.py`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path

import torch
import torch.distributed as dist
from measure import command_line, machine

import labkit
from labkit.data import Corpus

WORLD_SIZE = 4
ROUNDS = 5
RUNS_PER_SPAWN = 5
RUNS_THAT_DO_NOTHING = 50


def ready_at(world: labkit.Group) -> float:
    """Return when this rank was ready, on the clock that all processes of a machine share."""
    world.all_reduce(torch.ones(1))
    return time.monotonic()


def spawned_rank(rank: int, world_size: int, store: str, results: str) -> None:
    """The same with torch's launcher, in its best form here: file store, one thread."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, world_size), rank=rank, world_size=world_size
    )
    dist.all_reduce(torch.ones(1))
    with open(f"{results}.{rank}", "w") as file:
        file.write(str(time.monotonic()))
    dist.barrier()
    dist.destroy_process_group()


def seconds_with_labkit() -> float:
    """From the call of run until the last rank is ready."""
    began = time.monotonic()
    return max(labkit.run(ready_at, WORLD_SIZE).values) - began


def seconds_with_spawn() -> float:
    """From the call of spawn until the last rank is ready."""
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "ready")
        began = time.monotonic()
        torch.multiprocessing.spawn(
            spawned_rank, (WORLD_SIZE, os.path.join(folder, "store"), results), WORLD_SIZE
        )
        ready = [float(open(f"{results}.{rank}").read()) for rank in range(WORLD_SIZE)]
        return max(ready) - began


def seconds_of_first_call() -> float:
    """labkit's first call in a fresh process, which starts the fork server."""
    code = "import launch; print(launch.seconds_with_labkit())"
    folder = os.path.dirname(os.path.abspath(__file__))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def seconds_of_reading() -> float:
    """Return the text of the standard library, as each process reads it once."""
    Corpus.standard_library.cache_clear()
    began = time.monotonic()
    Corpus.standard_library()
    return time.monotonic() - began


def nothing(world: labkit.Group) -> None:
    """A rank that only starts and ends."""


def computed() -> list[float]:
    """So far: user and system seconds of the driver, of the server, of ended ranks; page faults."""
    own = os.times()
    of_server = Path(f"/proc/{server()}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = [int(field) / ticks for field in of_server[11:15]]  # utime stime cutime cstime
    return [own.user, own.system, *seconds, *map(float, of_server[7:9])]  # minflt cminflt


def server() -> int:
    """Return the process from which ranks are forked."""
    pid = forkserver._forkserver._forkserver_pid
    assert pid is not None, "no run has started it"
    return pid


def print_processor_time() -> None:
    """A line per number of ranks."""
    rollup = Path(f"/proc/{server()}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {line.split()[0]: int(line.split()[1]) for line in rollup}
    num_maps = Path(f"/proc/{server()}/maps").read_text().count("\n")
    print(f"\nProcessor time of run(nothing, n), in ms: user + system. {RUNS_THAT_DO_NOTHING} runs")
    print(
        f"  the fork server: {kilobytes['Rss:'] / 1000:.0f} MB resident, "
        f"{kilobytes['Private_Dirty:'] / 1000:.0f} MB private, {num_maps} mappings"
    )
    print("   n       driver         server          ranks    together    page faults of ranks")
    for n in (1, 2, 4):
        before = computed()
        for _ in range(RUNS_THAT_DO_NOTHING):
            labkit.run(nothing, n)
        each = [(b - a) / RUNS_THAT_DO_NOTHING for a, b in zip(before, computed(), strict=True)]
        ms = [1000 * seconds for seconds in each[:6]]
        pairs = "".join(f"{ms[i]:7.1f} + {ms[i + 1]:4.1f} " for i in (0, 2, 4))
        print(f"  {n:2d}{pairs}{sum(ms):9.1f} {each[7]:17.0f}")


def main() -> None:
    """Alternate the three, print medians and ratios; then processor time."""
    command_line(__doc__).parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    seconds_with_labkit()  # the first call is measured on its own, below
    spawn, warm, first = [], [], []
    for _ in range(ROUNDS):
        spawn.append(seconds_with_spawn())
        warm += [seconds_with_labkit() for _ in range(RUNS_PER_SPAWN)]
        first.append(seconds_of_first_call())
    spawn_s, warm_s, first_s = (statistics.median(times) for times in (spawn, warm, first))
    print(f"{WORLD_SIZE} ranks ready, medians. {machine()}")
    print(f"  torch.multiprocessing.spawn   {spawn_s:.3f} s")
    print(f"  labkit.run                    {warm_s:.3f} s   {spawn_s / warm_s:.1f}x faster")
    print(f"  labkit.run, the first call    {first_s:.3f} s   {spawn_s / first_s:.1f}x faster")
    reading_s = statistics.median(seconds_of_reading() for _ in range(ROUNDS))
    print(f"  Corpus.standard_library       {1e3 * reading_s:.1f} ms in each process")
    if sys.platform == "linux":
        print_processor_time()


if __name__ == "__main__":
    main()
