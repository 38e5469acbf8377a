"""Checkpoints beside torch's Distributed Checkpoint (DCP): seconds of save, stall and load.

    save     Checkpointer.save                   beside dcp.save
    stall    Checkpointer.save(wait=False)       beside dcp.async_save: until training goes on
    load     Checkpointer.load                   beside dcp.load, saved by another number of ranks

Both save the same tensors, sharded over the ranks (FullyShardedModule; DTensors of fully_shard's
layout), to the same file system, synced. A checkpoint of the lab has checksums, which DCP does not
make. They are measured apart, in each round beside its save or load, and every ratio is without
them. Loads read from the page cache, both. DCP's asynchronous save is its default, which copies
into new memory each time; the lab's reuses its memory.

One run, alternating, medians of the slowest rank. `python benchmarks/checkpoint.py [FOLDER]`: on
the file system of FOLDER, else of the temporary folder.
"""

import shutil
import statistics
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from measure import command_line, machine
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import labkit
from labkit.checkpoint import Checkpointer
from labkit.checkpoint.loading import find, verify
from labkit.checkpoint.saving import memory_of
from labkit.zero import FullyShardedModule

NUM_LAYERS, WIDTH = 24, 2048
"""100.7M parameters in float32: 403 MB."""
ROUNDS = 5


class Pair:
    """The same numbers twice: as the lab's shards and as DTensors."""

    def __init__(self, world: labkit.Group, folder: Path) -> None:
        self.world, self.folder = world, folder
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(NUM_LAYERS)]
        self.model = FullyShardedModule(nn.Sequential(*layers), world)
        self.checkpointer = Checkpointer(folder / "lab", self.model, None, world, keep_last=1)
        mesh = init_device_mesh("cpu", (world.size,))
        self.dtensors = {
            name: DTensor.from_local(shard.detach().view(-1, WIDTH).clone(), mesh, [Shard(0)])
            for name, shard in self.model.named_parameters()
        }
        self.of_thread = (
            torch.distributed.new_group()
        )  # a thread's messages may not mix with others
        self.step = 0

    def save(self) -> None:
        """Save with labkit."""
        self.step += 1
        self.checkpointer.save(self.step)

    def start(self) -> None:
        """Start to save with labkit; return when training continues."""
        self.step += 1
        self.checkpointer.save(self.step, wait=False)

    def checksums(self) -> None:
        """Compute the checksums that DCP does not make."""
        for shard in self.model.parameters():
            zlib.crc32(memory_of(shard.detach()))

    def dcp_save(self) -> None:
        """Save with DCP."""
        dcp.save(self.dtensors, checkpoint_id=self.folder / "dcp")

    def dcp_start(self) -> None:
        """Start to save with DCP; return when training continues."""
        where = self.folder / "dcp"
        self.future = dcp.async_save(
            self.dtensors, checkpoint_id=where, process_group=self.of_thread
        )


def seconds(world: labkit.Group, act: Callable[[], object]) -> float:
    """Return the seconds of the slowest rank."""
    world.barrier()
    started = time.perf_counter()
    act()
    mine = torch.tensor([time.perf_counter() - started], dtype=torch.float64)
    return float(world.all_reduce(mine, "max").item())


def saves(world: labkit.Group, folder: Path) -> dict[str, list[float]]:
    """Save and start in turns."""
    warnings.simplefilter("ignore")  # DCP's, that it overwrites
    pair = Pair(world, folder)
    found: dict[str, list[float]] = {}
    for number in range(ROUNDS + 1):  # the first is warm-up: folders, plans, buffers, processes
        save_s = seconds(world, pair.save)
        pair.checkpointer.wait()  # until the old one is removed, which nothing waits for elsewhere
        times = {
            "save": save_s,
            "save, dcp": seconds(world, pair.dcp_save),
            "stall": seconds(world, pair.start),
        }
        pair.checkpointer.wait()
        times["stall, dcp"] = seconds(world, pair.dcp_start)
        pair.future.result()
        times["checksums"] = seconds(world, pair.checksums)
        if number:
            for name, each in times.items():
                found.setdefault(name, []).append(each)
    return found


def loads(world: labkit.Group, folder: Path) -> dict[str, list[float]]:
    """Load in turns what another number of ranks has saved."""
    pair = Pair(world, folder)
    found: dict[str, list[float]] = {}
    saved = find(folder / "lab", world)
    assert saved is not None
    for number in range(ROUNDS + 1):
        times = {
            "load": seconds(world, pair.checkpointer.load),
            "load, dcp": seconds(
                world, lambda: dcp.load(pair.dtensors, checkpoint_id=folder / "dcp")
            ),
            "verify": seconds(world, lambda: verify(saved, world)),
        }
        if number:
            for name, each in times.items():
                found.setdefault(name, []).append(each)
    for name, shard in pair.model.named_parameters():
        assert torch.equal(shard.detach().view(-1, WIDTH), pair.dtensors[name].to_local())
    return found


def shown(name: str, times: dict[str, list[float]], apart: str | None = None) -> str:
    """Return a line: medians, and ratios without what is measured apart."""
    checks = times[apart] if apart else [0.0] * ROUNDS
    ours = [a - b for a, b in zip(times[name], checks, strict=True)]
    theirs = times[f"{name}, dcp"]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    median = statistics.median
    text = f"  {name:6}{median(ours):6.3f} s   dcp {median(theirs):6.3f} s   ratio "
    text += f"{median(ours) / median(theirs):.2f} ({min(ratios):.2f} to {max(ratios):.2f} by round)"
    return text + (f"; checksums {median(checks):.3f} s more" if apart else "")


def main() -> None:
    """Save on 2 and on 4 ranks, load each on the other number."""
    parser = command_line(__doc__)
    parser.add_argument("folder", nargs="?", help="save on its file system; else temporary files")
    where = parser.parse_args().folder
    if where and not Path(where).is_dir():
        parser.error(f"{where} is no folder")
    print(f"{NUM_LAYERS * WIDTH * WIDTH / 1e6:.1f}M parameters in float32. {machine()}")
    for saved, loaded in ((2, 4), (4, 2)):
        folder = Path(tempfile.mkdtemp(dir=where))
        try:
            times = labkit.run(saves, saved, (folder,), timeout=900).values[0]
            print(f"saved by {saved} ranks")
            print(shown("save", times, "checksums"))
            print(shown("stall", times))
            times = labkit.run(loads, loaded, (folder,), timeout=900).values[0]
            print(f"loaded by {loaded} ranks, saved by {saved}")
            print(shown("load", times, "verify"))
        finally:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
