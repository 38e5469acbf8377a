"""Four ways to go on after a failure, on real ranks: steps repeated, bytes moved, seconds lost.

    from disk      one rank of four is killed; all begin anew, from a checkpoint every 8 steps
    from memory    a host with two of four ranks is lost, and its memory; all begin anew, from the
                   partner's copy of every step
    replicas       one of four replicas is killed; the others go on, and it heals from one of them

The model is a GPT with AdamW, sharded by ZeRO-3 in the first two. A step takes 20 ms or more.
"""

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from torch import Tensor, nn

from labkit import Group, attempt, elastic
from labkit.checkpoint import Checkpointer
from labkit.data import Batch
from labkit.interview.runs.real_run import real_run
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.train import TrainConfig, loss
from labkit.zero import FullyShardedModule

_CONFIG = GPTConfig(context=16, num_layers=2, hidden=32, num_heads=2, ffn=64)
_SETTINGS = TrainConfig(num_sequences=6)
_NUM_STEPS, _INTERVAL, _STEP_S = 40, 8, 0.02
RUNGS = ("from disk", "from memory", "replicas")


class Recovery(NamedTuple):
    """What a failure cost, and what was paid before it."""

    steps_repeated: int
    bytes_sent: int
    """By each rank for each save or step, so that its state survives; nothing for a disk."""
    bytes_moved: int
    """To be back: read or received by rank 0, or by the replica that returned."""
    seconds_lost: float


@real_run
def after_a_kill(rung: str, killed_in: int = 13) -> Recovery:
    """The cost of one failure in the step `killed_in`. rung: one of RUNGS."""
    if rung == "replicas":
        return _of_replicas(killed_in)
    program = {"from disk": _from_disk, "from memory": _from_memory}[rung]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ended = elastic.run(program, 4, (folder, killed_in), timeout=180)
        lines = (folder / "made").read_text().splitlines()
    made = [(float(seconds), int(step)) for seconds, step in map(str.split, lines)]
    sent, read = ended.run.values[0]
    return Recovery(len(made) - _NUM_STEPS, sent, read, elastic.seconds_lost(made))


def _from_disk(world: Group, folder: Path, killed_in: int) -> tuple[int, int]:
    model, optimizer = _sharded(world)
    checkpointer = Checkpointer(folder / "disk", model, optimizer, world)
    loaded = checkpointer.load()
    for step in range(loaded.step if loaded else 0, _NUM_STEPS):
        if (step, world.rank, attempt()) == (killed_in, 2, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        _step(model, optimizer, step, world)
        _note(world, folder, step)
        if (step + 1) % _INTERVAL == 0:
            checkpointer.save(step + 1)
    return 0, loaded.bytes_read if loaded else 0


def _from_memory(world: Group, folder: Path, killed_in: int) -> tuple[int, int]:
    model, optimizer = _sharded(world)
    host, sent = world.rank // 2, 0
    here = folder / f"memory-of-host-{host}"
    memory = elastic.PartnerMemory(here, model, optimizer, world, host=host)
    loaded = memory.load()
    for step in range(loaded.step if loaded else 0, _NUM_STEPS):
        if (step, host, attempt()) == (killed_in, 1, 0):
            shutil.rmtree(here, ignore_errors=True)
            os.kill(os.getpid(), signal.SIGKILL)
        _step(model, optimizer, step, world)
        sent = memory.save(step + 1)
        _note(world, folder, step)
    return sent, loaded.bytes_read if loaded else 0


def _of_replicas(killed_in: int) -> Recovery:
    ended = elastic.run_replicas(_replica, 4, (killed_in,), timeout=180)
    (healing,) = ended.healings
    made = [(commit.at_s, commit.step) for commit in ended.commits]
    begun, nbytes = ended.values[0]
    return Recovery(begun - _NUM_STEPS, nbytes, healing.num_bytes, elastic.seconds_lost(made))


def _replica(replica: elastic.Replica, killed_in: int) -> tuple[int, int]:
    """How many steps it has begun, and the bytes of its gradients."""
    model = GPT(_CONFIG)
    optimizer, begun = AdamW(model.parameters(), 1e-3), 0
    replica.hold(model, optimizer)
    gradients: list[Tensor] = []
    while replica.step < _NUM_STEPS:
        group = replica.begin_step()
        begun += 1
        if (replica.step, replica.number, attempt()) == (killed_in, 2, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        share = _batch(replica.step).share(group.rank, group.size)
        _backward(model, share, 1.0)
        gradients = [x.grad for x in model.parameters() if x.grad is not None]
        replica.all_reduce(gradients, len(share))
        if replica.commit():
            optimizer.step()
        optimizer.zero_grad()
    return begun, sum(x.nbytes for x in gradients)


def _sharded(world: Group) -> tuple[FullyShardedModule, AdamW]:
    model = FullyShardedModule(GPT(_CONFIG), world)
    return model, AdamW(model.parameters(), 1e-3)


def _step(model: nn.Module, optimizer: AdamW, step: int, world: Group) -> None:
    batch = _batch(step)
    share = batch.share(world.rank, world.size)
    _backward(model, share, len(share) * world.size / len(batch))  # ZeRO-3 averages over ranks
    optimizer.step()
    optimizer.zero_grad()


def _batch(step: int) -> Batch:
    return _SETTINGS.batches(None, _CONFIG.context).at(step)


def _backward(model: nn.Module, share: Batch, weight: float) -> None:
    time.sleep(_STEP_S)
    (loss(model, share) * weight).backward()


def _note(world: Group, folder: Path, step: int) -> None:
    if world.rank == 0:
        with (folder / "made").open("a") as file:
            print(time.monotonic(), step, file=file)
