"""Reinforcement learning of a language model: trainers and engines on ranks of their own.

    rank 0, 1   trainers     step | step | step        policy, optimizer, reference: ZeRO-3 shards
                               \\w     \\w     \\w          w: weights of a version, by bytes needed
    rank 2, 3   engines      answers | answers | ...   the serving engine, one or more ranks each
                               /a     /a     /a          a: answers, through the queue on rank 0

    settings = Settings(staleness=0)          synchronous: engines wait for each version
    settings = Settings(staleness=1)          one step off: they work on the next batch meanwhile
    settings = Settings(staleness=4)          asynchronous, at most 4 versions behind
    settings = Settings(staleness=4, is_partial=True)     an update interrupts running answers

    result = labkit.run(train, 4, (settings, folder)).values[0]

The files, in order: grpo.py (the loss), batch_invariant.py (the model), weight_sync.py,
generator.py, rollout_queue.py, grpo_trainer.py, and this loop. With a folder, the job saves a
checkpoint after each `checkpoint_every` updates, and goes on from it when it is called again: the
bank's cursor is saved with the parameters, so no rollout is used twice and none is lost.

Memory of the models: policy with optimizer and reference on the trainers, a copy on each engine.
Papers: Sheng et al., HybridFlow (verl), arXiv:2409.19256; Noukhovitch et al., arXiv:2410.18252 (one
step off); Fu et al., AReaL, arXiv:2505.24298 (asynchronous, partial rollouts).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from labkit import arguments
from labkit.checkpoint import Checkpointer, RolloutBank
from labkit.comm import Group, Pending
from labkit.gpt_config import GPTConfig
from labkit.rl.arithmetic import VOCAB, Addition
from labkit.rl.generator import Generator, broadcast_plain, receive_plain, send_plain
from labkit.rl.generator import Completion
from labkit.rl.grpo_trainer import Figures, Trainer
from labkit.rl.rollout_queue import RolloutQueue
from labkit.rl.weight_sync import WeightSync
from labkit.shards import named_shards
import torch

SMALL = GPTConfig(vocab=VOCAB, context=16, num_layers=2, hidden=32, num_heads=4)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A job. Ranks: `trainers`, then engines of `engine_ranks` ranks each."""

    config: GPTConfig = SMALL
    task: Addition = field(default_factory=Addition)
    seed: int = 0
    trainers: int = 2
    engine_ranks: int = 1
    num_updates: int = 100
    num_prompts: int = 16
    """P: groups of a batch."""
    group_size: int = 8
    """G: answers to a prompt."""
    staleness: int = 0
    """Versions that a rollout may be behind: 0 synchronous, 1 one step off, more asynchronous."""
    is_partial: bool = False
    """Whether an update interrupts running answers; else an engine ends them first."""
    sync_every: int = 1
    """Weights are sent each time that this many updates have been made."""
    sleep_every: int = 0
    """Engines give back their memory after each version that this divides; 0: never."""
    max_new_tokens: int = 6
    max_running: int = 32
    """Answers that an engine computes in one pass; as many may wait in it."""
    in_flight: int = 32
    """Answers that an engine is given at a time."""
    learning_rate: float = 1e-3
    clip: float = 0.2
    kl_weight: float = 0.01
    warm_start: int = 100
    """Supervised steps before the first version."""
    checkpoint_every: int = 0
    """Updates between checkpoints; 0: none."""

    def __post_init__(self) -> None:
        for name in ("trainers", "engine_ranks", "num_updates", "num_prompts", "max_running"):
            arguments.whole(name, getattr(self, name), "1 or more")
        arguments.whole("group_size", self.group_size, "2 or more answers, or nothing is compared", least=2)
        arguments.whole("staleness", self.staleness, "0 or more versions", least=0)
        arguments.whole(
            "sync_every",
            self.sync_every,
            f"1 to staleness + 1 = {self.staleness + 1} updates, or engines may start no group "
            "until weights come that are sent after it",
            most=self.staleness + 1,
        )

    @property
    def batch(self) -> int:
        """Answers of an update."""
        return self.num_prompts * self.group_size

    @property
    def probe(self) -> list[tuple[list[int], list[int]]]:
        """Prompts with answers, whose log-probabilities engines and trainers compare."""
        prompts = [self.task.prompt(-1 - number) for number in range(8)]
        return [(prompt, self.task.answer(prompt)) for prompt in prompts]


@dataclass(frozen=True)
class Parts:
    """The classes of a job's ranks. A fault is a subclass of one of them."""

    trainer: type[Trainer] = Trainer
    generator: type[Generator] = Generator


@dataclass
class Trained:
    """What the trainers' rank 0 returns. Other ranks return None, or the same parameters."""

    figures: list[Figures]
    parameters: dict[str, Tensor]
    stalled: str = ""
    """Why nothing could come any more; empty for a job that ended."""
    seconds: float = 0.0


def train(
    world: Group, settings: Settings, folder: str | Path | None = None, parts: Parts = Parts()
) -> Trained | None:
    """Run one rank of a job; returns Trained on the trainers, None on engines.

    folder: for the rollout bank, checkpoints and the reference; None: a temporary bank, nothing to
    go on from. ValueError: ranks that do not add up to trainers and whole engines.
    """
    trainers, engine_ranks = settings.trainers, settings.engine_ranks
    if world.size <= trainers or (world.size - trainers) % engine_ranks:
        raise ValueError(
            f"{world.size} ranks are not {trainers} trainers and engines of {engine_ranks} ranks: "
            f"start {trainers} + n * {engine_ranks} ranks"
        )
    number = (world.rank - trainers) // engine_ranks  # of the engine; below 0: a trainer
    group = world.split(max(number, -1) + 1)
    control, weights = world.split(0), world.split(0)
    assert isinstance(group, Group) and isinstance(control, Group) and isinstance(weights, Group)
    if world.rank >= trainers:
        parts.generator(settings, number, group, control, weights).serve()
        return None
    with tempfile.TemporaryDirectory() as temporary:
        job = _Job(settings, Path(folder or temporary), parts.trainer(settings, group), weights)
        leaders = range(trainers, world.size, engine_ranks)
        return job.run(control, list(leaders))


class _Cursor:
    """The bank's place in the checkpoint, on trainers that do not open the bank."""

    consumed = 0

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.consumed = state["consumed"]


class _Job:
    """The loop of a trainer. Rank 0 asks the queue what comes next, and all do it."""

    def __init__(self, settings: Settings, folder: Path, trainer: Trainer, weights: Group) -> None:
        self.settings, self.trainer, self.group = settings, trainer, trainer.group
        self.sync = WeightSync(weights, list(named_shards(trainer.model)), [])
        self.bank = RolloutBank(folder / "rollouts.log") if self.group.rank == 0 else None
        self.cursor: Any = self.bank or _Cursor()
        self.sent: list[Pending[None]] = []
        self.sent_norm, self.sent_bytes = 0.0, 0
        self.probes: dict[int, list[float]] = {}
        self.version = 0
        extra = {"rollouts": self.cursor}
        self.checkpointer = Checkpointer(
            folder / "policy", trainer.model, trainer.optimizer, self.group, extra=extra
        )
        self._begin(folder)

    def _begin(self, folder: Path) -> None:
        """Load the job, or start it: warm start, reference, first checkpoint."""
        trainer, saves = self.trainer, bool(self.settings.checkpoint_every)
        loaded = self.checkpointer.load() if saves else None
        if loaded:
            self.version = loaded.step
        else:
            trainer.warm_start()
        trainer.freeze_reference()
        if saves:
            reference = Checkpointer(folder / "reference", trainer.reference, None, self.group)
            if loaded:
                reference.load()
            elif not reference.load():
                reference.save(0)
                self.checkpointer.save(0)

    def run(self, control: Group, leaders: list[int]) -> Trained:
        """Make updates until the queue says stop."""
        settings, group = self.settings, self.group
        threads: list[threading.Thread] = []
        if self.bank is not None:
            queue = RolloutQueue(settings, self.bank, len(leaders))
            for engine, rank in enumerate(leaders):
                thread = threading.Thread(target=_serve, args=(queue, engine, control, rank))
                thread.start()
                threads.append(thread)
        else:
            queue = None
        figures: list[Figures] = []
        began_s = last_s = time.perf_counter()
        idle_s, engines_before = 0.0, [0.0] * len(leaders)
        while True:
            waited_s = time.perf_counter()
            event = self._next(queue)
            idle_s += time.perf_counter() - waited_s
            if event["kind"] == "stop":
                break
            if event["kind"] == "publish":
                self._publish(event["version"])
                continue
            now = Figures(self.version)
            answers = [Completion(**each) for each in event["answers"]]
            if isinstance(self.cursor, _Cursor):
                self.cursor.consumed += len(answers)
            self.trainer.step(answers, now)
            self.version += 1
            if queue is not None:
                queue.stepped()
            self._save()
            engines = event["engines"]
            self._compare(now, engines)
            of_trainers = group.all_gather(torch.tensor([idle_s], dtype=torch.float64)).tolist()
            of_engines = [each["idle_s"] - before for each, before in zip(engines, engines_before)]
            engines_before = [each["idle_s"] for each in engines]
            repeated = [x for x in of_engines for _ in range(settings.engine_ranks)]
            now.idle_s, idle_s = [*of_trainers, *repeated], 0.0
            now.seconds, last_s = time.perf_counter() - last_s, time.perf_counter()
            now.sent_norm, now.sent_bytes = self.sent_norm, self.sent_bytes
            self.sent_norm, self.sent_bytes = 0.0, 0
            figures.append(now)
        for pending in self.sent:
            pending.wait()
        for thread in threads:
            thread.join()
        self.checkpointer.wait()
        parameters = self.trainer.model.full_parameters()
        return Trained(figures, parameters, event["stalled"], time.perf_counter() - began_s)

    def _next(self, queue: RolloutQueue | None) -> dict[str, Any]:
        """Return the queue's next event, on all trainers."""
        event: dict[str, Any] = {}
        if queue is not None:
            kind, answers = queue.next_event()
            plain = [vars(each) for each in answers]
            event = {"kind": kind, "answers": plain, "version": queue.version}
            event |= {"stalled": queue.stalled, "engines": queue.snapshots()}
        result: dict[str, Any] = broadcast_plain(event, self.group)
        return result

    def _publish(self, version: int) -> None:
        """Start to send the weights of this version; the queue lets engines receive them."""
        for pending in self.sent:  # engines have received these: the queue asks for one at a time
            pending.wait()
        self.sent = self.sync.send()
        squares = sum(p.detach().double().square().sum() for p in self.trainer.model.parameters())
        self.sent_norm = float(self.group.all_reduce(torch.as_tensor(squares))) ** 0.5
        mine = torch.tensor([sum(len(numbers) for numbers in self.sync.sends.values()) * 4])
        self.sent_bytes += int(self.group.all_reduce(mine))
        self.probes = {version: self.trainer.probed()}

    def _compare(self, figures: Figures, engines: list[dict[str, Any]]) -> None:
        """Fill in what the engines reported of their probes and weights."""
        figures.served_norm = [each.get("served_norm", 0.0) for each in engines]
        ratios = [
            torch.tensor(mine).sub(torch.tensor(each["probe"])).exp()
            for each in engines
            if each["probe"] and (mine := self.probes.get(each["probed"])) is not None
        ]
        if ratios:
            figures.unchanged_ratio = float(torch.cat(ratios).mean())
            figures.unchanged_off = float((torch.cat(ratios) - 1).abs().max())

    def _save(self) -> None:
        every = self.settings.checkpoint_every
        if every and self.version % every == 0:
            self.checkpointer.save(self.version)


def _serve(queue: RolloutQueue, engine: int, control: Group, rank: int) -> None:
    """Receive an engine's reports and reply, in a thread of rank 0."""
    try:
        while True:
            reply = queue.reply(engine, receive_plain(control, rank))
            send_plain(reply, control, rank)
            if reply.get("stop"):
                return
    except BaseException as error:
        queue.fail(error)
        raise
