"""A training run that is interrupted, and one that goes on from what a checkpoint had kept.

And torchrun's elastic agent when one of its workers fails. Which processes go on?

    round 0    worker 0 waits    worker 1 exits with 1       two processes
    round 1    worker 0          worker 1                    two more, with new ranks and new memory
"""

import io
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from labkit import Group, RankError, attempt, elastic
from labkit.checkpoint import Checkpointer, Rollout, RolloutBank
from labkit.interview.runs.real_run import real_run, run
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.train import TrainConfig, train_step
from labkit.zero import FullyShardedModule

_CONFIG = GPTConfig(context=16, num_layers=1, hidden=32, num_heads=2, ffn=64)
_SETTINGS = TrainConfig(num_sequences=4, dtype=torch.float64)
_HALF = 4  # steps before the checkpoint, and after it


class _Half(NamedTuple):
    losses: list[float]
    used: list[bytes]
    """The tokens of each batch."""
    checkpoint: bytes


@real_run
def losses_as_before(kept: str) -> tuple[int, int]:
    """How many of how many losses after a restart are those of a run that was not interrupted.

    kept: what the checkpoint has, of "model", "optimizer" (Adam's moments and its step count) and
    "cursor" (which batch is next), as "model optimizer". A process of its own runs each half.
    """
    whole = run(_train, 1, (None, (), 2 * _HALF)).values[0].losses
    after = _second_half(kept).losses
    return sum(a == b for a, b in zip(whole[_HALF:], after, strict=True)), len(after)


@real_run
def batches_used_twice(kept: str) -> int:
    """Of the 4 batches after the restart, how many had been trained on before it."""
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
    """What part of a sharded checkpoint a rank reads, at most, when others load it than saved it.

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


_A_STEP = 2  # rollouts that a step learns from; three are generated meanwhile


@real_run
def rollouts_learned(cursor: str) -> tuple[int, int]:
    """How many rollouts the parameters have learned from twice, and how many never, after a kill.

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


_FAILS_IN = 5  # of 8 steps, with a checkpoint after each fourth


@real_run
def where_attempts_end(failure: str) -> list[int]:
    """For each attempt of a job that restarts: how many steps were made when it ended.

    failure: "a batch" that raises whenever it is used, or "a kill" of a rank in the same step.
    """
    with tempfile.TemporaryDirectory() as folder:
        with suppress(RankError):
            elastic.run(_fails, 2, (folder, failure), timeout=180)
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


@real_run
def processes() -> tuple[frozenset[int], ...]:
    """The processes of NUM_WORKERS workers before and after one of them fails."""
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
        subprocess.run(command, check=True, capture_output=True, timeout=180)
        found = [each.name.split("-") for each in seen.iterdir()]
    return tuple(frozenset(int(pid) for n, pid in found if n == number) for number in "01")


def survivors() -> int:
    """Of NUM_WORKERS workers of torchrun, how many keep their process when one of them fails."""
    before, after = processes()
    return len(before & after)


def started_again() -> int:
    """How many workers torchrun starts when one of NUM_WORKERS fails."""
    before, after = processes()
    return len(after - before)
