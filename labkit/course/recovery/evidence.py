"""Measure what a failure costs: steps repeated, bytes moved and read, seconds lost.

A run is interrupted, and goes on from what a checkpoint had kept. Under torchrun's elastic agent
one of two workers fails:

    round 0    worker 0 waits    worker 1 exits with 1       two processes
    round 1    worker 0          worker 1                    two more, with new ranks and new memory

RUNGS are ways to go on after a failure:

    from disk      one rank of four is killed; all restart from a checkpoint every 8 steps
    from memory    a host with two of four ranks is lost, and its memory; all restart from the
                   partner's copy of every step
    replicas       one of four replicas is killed; the others go on, and it heals from one of them

The model is a GPT with AdamW, sharded by ZeRO-3 in the first two. A step takes 20 ms or more.
"""

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from labkit import Group, RankError, attempt, elastic
from labkit.checkpoint import Checkpointer, Rollout, RolloutBank
from labkit.data import Batch
from labkit.interview.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.train import TrainConfig, loss, train_step
from labkit.zero import FullyShardedModule

_CONFIG = GPTConfig(context=16, num_layers=1, hidden=32, num_heads=2, ffn=64)
_SETTINGS = TrainConfig(num_sequences=4, dtype=torch.float64)
_HALF = 4  # steps before the checkpoint, and after it
_A_STEP = 2  # rollouts that a step learns from; three are generated meanwhile
_FAILS_IN = 5  # 8 steps, with a checkpoint after each fourth
NUM_WORKERS = 2
# Leaves a file with its round and its process. No model is trained, and nothing is sent.
_WORKER = """
import os, sys, time
folder, round = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
open(os.path.join(folder, f"{round}-{os.getpid()}"), "w").close()
while round == "0":
    if os.environ["RANK"] == "1" and len(os.listdir(folder)) == 2:  # the other has started
        sys.exit(1)
    time.sleep(0.05)
"""
_JOB = GPTConfig(context=16, num_layers=2, hidden=32, num_heads=2, ffn=64)
_SETTINGS_OF_THE_JOB = TrainConfig(num_sequences=6)
_NUM_STEPS, _INTERVAL, _STEP_S = 40, 8, 0.02
RUNGS = ("from disk", "from memory", "replicas")


class _Half(NamedTuple):
    losses: list[float]
    used: list[bytes]
    """The tokens of each batch."""
    checkpoint: bytes


@real_run
def losses_as_before(kept: str) -> tuple[int, int]:
    """Return how many losses after a restart match an uninterrupted run, and of how many.

    kept: the checkpoint's parts, of "model", "optimizer" (Adam's moments and its step count) and
    "cursor" (which batch is next), as "model optimizer". A process of its own runs each half.
    """
    whole = run(_train, 1, (None, (), 2 * _HALF)).values[0].losses
    after = _second_half(kept).losses
    return sum(a == b for a, b in zip(whole[_HALF:], after, strict=True)), len(after)


@real_run
def batches_used_twice(kept: str) -> int:
    """Return how many of the 4 batches after the restart had been trained on before it."""
    before = _first_half().used
    return sum(batch in before for batch in _second_half(kept).used)


@real_run
def _first_half() -> _Half:
    return run(_train, 1, (None, (), _HALF)).values[0]


@real_run
def _second_half(kept: str) -> _Half:
    return run(_train, 1, (_first_half().checkpoint, tuple(kept.split()), _HALF)).values[0]


def _train(world: Group, saved: bytes | None, kept: tuple[str, ...], num_steps: int) -> _Half:
    model = GPT(_CONFIG, _SETTINGS.seed, _SETTINGS.dtype)
    # torch's, since its states can be saved whole
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if saved is not None:
        checkpoint = torch.load(io.BytesIO(saved))
        for name, each in (("model", model), ("optimizer", optimizer)):
            if name in kept:
                each.load_state_dict(checkpoint[name])
        first = checkpoint["cursor"] if "cursor" in kept else 0
    batches = [
        _SETTINGS.batches(None, _CONFIG.context).at(first + step) for step in range(num_steps)
    ]
    losses = [train_step(model, optimizer, batch) for batch in batches]
    buffer = io.BytesIO()
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(states | {"cursor": first + num_steps}, buffer)
    used = [batch.inputs_BT.numpy().tobytes() for batch in batches]
    return _Half(losses, used, buffer.getvalue())


@real_run
def share_read(saved_by: int, loaded_by: int) -> float:
    """Return the largest share of a sharded checkpoint that a rank reads after a change of ranks.

    A GPT with AdamW, sharded by ZeRO-3 over the ranks that save and over those that load.
    """
    with tempfile.TemporaryDirectory() as folder:
        whole = sum(run(_save_sharded, saved_by, (folder,)).values)
        return max(run(_load_sharded, loaded_by, (folder,)).values) / whole


def _sharded(world: Group, folder: str) -> tuple[FullyShardedModule, AdamW, Checkpointer]:
    model = FullyShardedModule(GPT(_CONFIG, _SETTINGS.seed, _SETTINGS.dtype), world)
    optimizer = AdamW(model.parameters(), 1e-3)
    return model, optimizer, Checkpointer(folder, model, optimizer, world)


def _save_sharded(world: Group, folder: str) -> int:
    model, optimizer, checkpointer = _sharded(world, folder)
    train_step(model, optimizer, _SETTINGS.batches(None, _CONFIG.context).at(0))
    checkpointer.save(1)
    shards = checkpointer.contents.shards()
    return sum(shard.tensor.nbytes for shard in shards if shard.kind == "elements")


def _load_sharded(world: Group, folder: str) -> int:
    loaded = _sharded(world, folder)[2].load()
    assert loaded is not None
    return loaded.bytes_read


@real_run
def rollouts_learned(cursor: str) -> tuple[int, int]:
    """Return how many rollouts were learned from twice, and how many never, after a kill.

    cursor: "in the checkpoint", "in a file" of its own that is written before each step, or "none":
    the queue starts again. The job is killed after 6 steps, 2 of them after its checkpoint, and
    goes on to 8.
    """
    with tempfile.TemporaryDirectory() as folder:
        run(_learn, 1, (folder, cursor, 6))
        times: list[int] = run(_learn, 1, (folder, cursor, 8)).values[0]
    last = max(number for number, count in enumerate(times) if count)
    return sum(count > 1 for count in times), times[: last + 1].count(0)


def _learn(world: Group, folder: str, cursor: str, num_steps: int) -> list[int]:
    bank, policy = RolloutBank(Path(folder, "log")), torch.nn.Linear(100, 1, bias=False)
    torch.nn.init.zeros_(policy.weight)  # how often it has learned from each
    extra = {"bank": bank} if cursor == "in the checkpoint" else {}
    checkpointer = Checkpointer(Path(folder, "job"), policy, None, world, extra=extra)
    loaded, file = checkpointer.load(), Path(folder, "cursor")
    if cursor == "in a file" and file.exists():
        bank.consumed = int(file.read_text())
    for step in range(loaded.step if loaded else 0, num_steps):
        first = len(bank)
        bank.append([Rollout(step, str(number).encode()) for number in range(first, first + 3)])
        rollouts = bank.take(_A_STEP)
        file.write_text(str(bank.consumed))
        with torch.no_grad():
            for rollout in rollouts:
                policy.weight[0, int(rollout.payload)] += 1
        if (step + 1) % 4 == 0:
            checkpointer.save(step + 1)
    return [int(count) for count in policy.weight[0].tolist()]


@real_run
def where_attempts_end(failure: str) -> list[int]:
    """For each attempt of a job that restarts: how many steps were made when it ended.

    failure: "a batch" that raises whenever it is used, or "a kill" of a rank in the same step.
    """
    with tempfile.TemporaryDirectory() as folder:
        with suppress(RankError):
            elastic.run(_fails, 2, (folder, failure), timeout=600)
        made = [each.name.split("-") for each in Path(folder).glob("*-*")]
    attempts = sorted({number for number, _ in made})
    return [max(int(step) for number, step in made if number == each) for each in attempts]


def _fails(world: Group, folder: str, failure: str) -> None:
    checkpointer = Checkpointer(Path(folder, "job"), torch.nn.Linear(1, 1), None, world)
    loaded = checkpointer.load()
    for step in range(loaded.step if loaded else 0, 2 * _HALF):
        if step == _FAILS_IN and world.rank == 1:
            if failure == "a batch":
                raise FloatingPointError("the loss of this batch is not finite")
            if attempt() == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        world.all_reduce(torch.ones(1))
        Path(folder, f"{attempt()}-{step + 1}").touch()
        if (step + 1) % _HALF == 0:
            checkpointer.save(step + 1)


@real_run
def processes() -> tuple[frozenset[int], ...]:
    """Return the processes of NUM_WORKERS workers before and after one of them fails."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "worker.py"
        script.write_text(_WORKER)
        seen = Path(folder) / "seen"
        seen.mkdir()
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--local-addr", "127.0.0.1", "--nproc-per-node", str(NUM_WORKERS)),
            *("--max-restarts", "1", "--monitor-interval", "0.1", str(script), str(seen)),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        found = [each.name.split("-") for each in seen.iterdir()]
    return tuple(frozenset(int(pid) for n, pid in found if n == number) for number in "01")


def survivors() -> int:
    """Return how many of torchrun's NUM_WORKERS workers keep their process when one fails."""
    before, after = processes()
    return len(before & after)


def started_again() -> int:
    """Return how many workers torchrun starts when one of NUM_WORKERS fails."""
    before, after = processes()
    return len(after - before)


class Recovery(NamedTuple):
    """The cost of a failure, and the cost of preparing for it."""

    steps_repeated: int
    bytes_sent: int
    """Bytes that each rank sends for each save or step, so that its state survives; 0 for a
    disk."""
    bytes_moved: int
    """Bytes to recover: read or received by rank 0, or by the replica that returned."""
    seconds_lost: float


@real_run
def after_a_kill(rung: str, killed_in: int = 13) -> Recovery:
    """Return the cost of one failure in the step `killed_in`. rung: one of RUNGS."""
    if rung == "replicas":
        return _of_replicas(killed_in)
    program = {"from disk": _from_disk, "from memory": _from_memory}[rung]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ended = elastic.run(program, 4, (folder, killed_in), timeout=600)
        lines = (folder / "made").read_text().splitlines()
    made = [(float(seconds), int(step)) for seconds, step in map(str.split, lines)]
    sent, read = ended.run.values[0]
    return Recovery(len(made) - _NUM_STEPS, sent, read, elastic.seconds_lost(made))


def _from_disk(world: Group, folder: Path, killed_in: int) -> tuple[int, int]:
    model, optimizer = _sharded_job(world)
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
    model, optimizer = _sharded_job(world)
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
    ended = elastic.run_replicas(_replica, 4, (killed_in,), timeout=600)
    (healing,) = ended.healings
    made = [(commit.at_s, commit.step) for commit in ended.commits]
    started, nbytes = ended.values[0]
    return Recovery(started - _NUM_STEPS, nbytes, healing.num_bytes, elastic.seconds_lost(made))


def _replica(replica: elastic.Replica, killed_in: int) -> tuple[int, int]:
    """Return the number of steps that a replica started, and the bytes of its gradients."""
    model = GPT(_JOB)
    optimizer, started = AdamW(model.parameters(), 1e-3), 0
    replica.register_state(model, optimizer)
    gradients: list[Tensor] = []
    while replica.step < _NUM_STEPS:
        group = replica.begin_step()
        started += 1
        if (replica.step, replica.number, attempt()) == (killed_in, 2, 0):
            os.kill(os.getpid(), signal.SIGKILL)
        share = _batch(replica.step).share(group.rank, group.size)
        _backward(model, share, 1.0)
        gradients = [x.grad for x in model.parameters() if x.grad is not None]
        replica.all_reduce(gradients, len(share))
        if replica.commit():
            optimizer.step()
        optimizer.zero_grad()
    return started, sum(x.nbytes for x in gradients)


def _sharded_job(world: Group) -> tuple[FullyShardedModule, AdamW]:
    model = FullyShardedModule(GPT(_JOB), world)
    return model, AdamW(model.parameters(), 1e-3)


def _step(model: nn.Module, optimizer: AdamW, step: int, world: Group) -> None:
    batch = _batch(step)
    share = batch.share(world.rank, world.size)
    _backward(model, share, len(share) * world.size / len(batch))  # ZeRO-3 averages over ranks
    optimizer.step()
    optimizer.zero_grad()


def _batch(step: int) -> Batch:
    return _SETTINGS_OF_THE_JOB.batches(None, _JOB.context).at(step)


def _backward(model: nn.Module, share: Batch, weight: float) -> None:
    time.sleep(_STEP_S)
    (loss(model, share) * weight).backward()


def _note(world: Group, folder: Path, step: int) -> None:
    if world.rank == 0:
        with (folder / "made").open("a") as file:
            print(time.monotonic(), step, file=file)
