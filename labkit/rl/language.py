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

With a folder, the job saves a checkpoint after each `checkpoint_every` updates, and goes on from it
when it is called again. The bank's cursor is saved with the parameters: no rollout is used twice,
and none is lost. labkit/rl/__init__.py lists the files of a job in reading order.

Memory of the models: policy with optimizer and reference on the trainers, a copy on each engine.
Papers: Sheng et al., HybridFlow (verl), arXiv:2409.19256; Noukhovitch et al., arXiv:2410.18252 (one
step off); Fu et al., AReaL, arXiv:2505.24298 (asynchronous, partial rollouts).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labkit.checkpoint import Checkpointer, RolloutBank
from labkit.comm import Group, Pending
from labkit.rl.answer_queue import AnswerQueue
from labkit.rl.completion import Completion, broadcast_plain, receive_plain, send_plain
from labkit.rl.figures import Figures
from labkit.rl.generator import Generator
from labkit.rl.grpo_trainer import Trainer
from labkit.rl.settings import Settings
from labkit.rl.weight_sync import WeightSync
from labkit.shards import named_shards


@dataclass(frozen=True)
class Parts:
    """The classes of a job's ranks. A fault is a subclass of one of them."""

    trainer: type[Trainer] = Trainer
    generator: type[Generator] = Generator


_HEALTHY = Parts()


@dataclass
class Trained:
    """The result of a job, on the trainers."""

    figures: list[Figures]
    parameters: dict[str, Tensor]
    """The whole policy, by name."""
    stalled: str = ""
    """The reason why nothing could come any more; empty for a job that made all updates."""
    seconds: float = 0.0
    """From the first version's weights to the last update."""

    @property
    def idle_shares(self) -> list[float]:
        """The share of the time in which each rank waited, 0 to 1. Empty without an update."""
        seconds = sum(each.seconds for each in self.figures)
        by_rank = zip(*(each.idle_s for each in self.figures), strict=True)
        return [sum(idle_s) / seconds for idle_s in by_rank]


def train(
    world: Group, settings: Settings, folder: str | Path | None = None, parts: Parts = _HEALTHY
) -> Trained | None:
    """Run one rank of a job; returns Trained on the trainers, None on engines.

    folder: for the rollout bank, checkpoints and the reference; None: a temporary bank, and no job
    to go on with. ValueError: ranks that do not add up to trainers and whole engines.
    """
    trainers, engine_ranks = settings.trainers, settings.engine_ranks
    if world.size <= trainers or (world.size - trainers) % engine_ranks:
        raise ValueError(
            f"{world.size} ranks are not {trainers} trainers and engines of {engine_ranks} ranks: "
            f"start {trainers} + n * {engine_ranks} ranks"
        )
    number = (world.rank - trainers) // engine_ranks  # the engine's; below 0 for a trainer
    group = world.split(max(number, -1) + 1)
    control, weights = world.split(0), world.split(0)
    assert isinstance(group, Group) and isinstance(control, Group) and isinstance(weights, Group)
    if number >= 0:
        parts.generator(settings, number, group, control, weights).serve()
        return None
    with tempfile.TemporaryDirectory() as temporary:
        job = _Job(settings, Path(folder or temporary), parts.trainer(settings, group), weights)
        return job.run(control, range(trainers, world.size, engine_ranks))


class _Cursor:
    """The bank's place in the checkpoint, on trainers that do not open the bank."""

    def __init__(self) -> None:
        self.consumed = 0

    def state_dict(self) -> dict[str, Any]:
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.consumed = state["consumed"]


class _Job:
    """The loop of a trainer. Rank 0 asks the queue what comes next, and all trainers do it."""

    def __init__(self, settings: Settings, folder: Path, trainer: Trainer, weights: Group) -> None:
        self.settings, self.trainer, self.group = settings, trainer, trainer.group
        self.sync = WeightSync(weights, list(named_shards(trainer.model)), [])
        self.bank = RolloutBank(folder / "rollouts.log") if self.group.rank == 0 else None
        self.cursor: RolloutBank | _Cursor = self.bank or _Cursor()
        extra = {"rollouts": self.cursor}
        self.checkpointer = Checkpointer(
            folder / "policy", trainer.model, trainer.optimizer, self.group, extra=extra
        )
        self.version = self._begin(folder)
        self.sent: list[Pending[None]] = []
        self.probes: dict[int, list[float]] = {}
        self.figures: list[Figures] = []

    def _begin(self, folder: Path) -> int:
        """Load the job, or start it: warm start, reference, first checkpoint. Its version."""
        trainer = self.trainer
        loaded = self.checkpointer.load() if self.settings.checkpoint_every else None
        if loaded is None:
            trainer.warm_start()
        trainer.freeze_reference()
        if self.settings.checkpoint_every:
            reference = Checkpointer(folder / "reference", trainer.reference, None, self.group)
            if reference.load() is None:
                reference.save(0)
            if loaded is None:
                self.checkpointer.save(0)
        return loaded.step if loaded else 0

    def run(self, control: Group, leaders: Sequence[int]) -> Trained:
        """Make updates until the queue says stop. leaders: the first rank of each engine."""
        queue, threads = None, list[threading.Thread]()
        if self.bank is not None:
            queue = AnswerQueue(self.settings, self.bank, len(leaders))
            for engine, rank in enumerate(leaders):
                arguments = queue, engine, control, rank
                threads.append(threading.Thread(target=_serve, args=arguments, daemon=True))
                threads[-1].start()
        self._next_figures()
        began_s = time.perf_counter()
        while (event := self._next_event(queue))["kind"] != "stop":
            if event["kind"] == "publish":
                self._publish()
            else:
                self._update([Completion(**each) for each in event["answers"]], queue)
                self._finish_figures(event["engines"])
        seconds = time.perf_counter() - began_s
        for pending in self.sent:
            pending.wait()
        for thread in threads:
            thread.join()
        self.checkpointer.wait()
        parameters = self.trainer.model.full_parameters()
        return Trained(self.figures, parameters, event["stalled"], seconds)

    def _next_event(self, queue: AnswerQueue | None) -> dict[str, Any]:
        """Return the queue's next event, on all trainers, and count the seconds until it comes."""
        began_s, event = time.perf_counter(), dict[str, Any]()
        if queue is not None:
            kind, answers = queue.next_event()
            event = {"kind": kind, "answers": [vars(each) for each in answers]}
            event["stalled"] = queue.stalled
            event["engines"] = queue.snapshots() if kind == "train" else []
        result: dict[str, Any] = broadcast_plain(event, self.group)
        self._idle_s += time.perf_counter() - began_s
        return result

    def _publish(self) -> None:
        """Start to send this version's weights. Engines receive them in their next turns."""
        for pending in self.sent:  # the queue asks when all have been received
            pending.wait()
        self.sent = self.sync.send()
        squares = sum(float(p.detach().double().square().sum()) for p in self.sync.shards)
        own = torch.tensor([squares, self.sync.sent_bytes], dtype=torch.float64)
        squares, sent_bytes = self.group.all_reduce(own).tolist()
        self._now.sent_norm, self._now.sent_version = squares**0.5, self.version
        self._now.sent_bytes += int(sent_bytes)
        self.probes[self.version] = self.trainer.probed()

    def _update(self, answers: list[Completion], queue: AnswerQueue | None) -> None:
        """Make an update, and save it where a checkpoint is due, before its weights are sent."""
        if isinstance(self.cursor, _Cursor):
            self.cursor.consumed += len(answers)
        self._now.version = self.version
        self.trainer.step(answers, self._now)
        self.version += 1
        every = self.settings.checkpoint_every
        if every and self.version % every == 0:
            self.checkpointer.save(self.version)
        if queue is not None:
            queue.stepped()

    def _next_figures(self) -> None:
        """Begin the figures of the next update."""
        self._now, self._idle_s, self._began_s = Figures(0), 0.0, time.perf_counter()

    def _finish_figures(self, engines: list[dict[str, Any]]) -> None:
        """Add what engines reported, and the seconds of all ranks. Wire: an all-gather."""
        now, engine_ranks = self._now, self.settings.engine_ranks
        mine = torch.tensor([self._idle_s], dtype=torch.float64)
        now.idle_s = self.group.all_gather(mine).tolist()
        now.idle_s += [each["idle_s"] for each in engines for _ in range(engine_ranks)]
        now.seconds = time.perf_counter() - self._began_s
        now.served_norm = [each["served_norm"] for each in engines]
        now.served_version = [each["version"] for each in engines]
        ratios = [
            (torch.tensor(self.probes[each["probed"]]) - torch.tensor(each["probe"])).exp()
            for each in engines
            if each["probed"] in self.probes
        ]
        if ratios:
            ratio_n = torch.cat(ratios)
            off_n = (ratio_n - 1).abs()
            now.unchanged_ratio = float(ratio_n.mean())
            now.unchanged_off, now.unchanged_median = float(off_n.max()), float(off_n.median())
        self.figures.append(now)
        self._next_figures()


def _serve(queue: AnswerQueue, engine: int, control: Group, rank: int) -> None:
    """Receive an engine's reports and send replies, in a thread of rank 0."""
    try:
        reply: dict[str, Any] = {}
        while not reply.get("stop"):
            reply = queue.reply(engine, receive_plain(control, rank))
            send_plain(reply, control, rank)
    except BaseException as error:
        queue.fail(error)
        raise
