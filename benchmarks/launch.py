"""How long until four ranks are ready, against torch.multiprocessing.spawn.

Ready: the process group is up and one all_reduce is done on every rank, counted from the call.
Then the milliseconds in which a rank reads the text that it trains on.
Run it with `python benchmarks/launch.py`.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from measure import command_line, machine

import labkit
from labkit.data import Corpus

WORLD_SIZE = 4
ROUNDS = 5
RUNS_PER_SPAWN = 5


def ready_at(world: labkit.Group) -> float:
    """When this rank was ready, on the clock that all processes of a machine share."""
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
    """The text of the standard library, as each process reads it once."""
    Corpus.standard_library.cache_clear()
    began = time.monotonic()
    Corpus.standard_library()
    return time.monotonic() - began


def main() -> None:
    """Alternate the three, print medians and ratios."""
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


if __name__ == "__main__":
    main()
