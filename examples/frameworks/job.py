"""The job that every framework here does: one GPT, the same batches, the same record.

    epoch 0, shuffled     7 2 5 0 | 3 6 1 4        | ends a step
    rank 0                7   5   | 3   1
    rank 1                  2   0 |   6   4        DistributedSampler: every second one

The optimizer is SGD, so that a sum instead of a mean shows. AdamW would hide it.
"""

import argparse
import json
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset, DistributedSampler

from labkit.data import Corpus
from labkit.model import GPT, GPTConfig

CONFIG = GPTConfig(num_layers=4, hidden=128)
SEQUENCES, SEQUENCES_PER_STEP = 32, 8
STEPS_PER_EPOCH = SEQUENCES // SEQUENCES_PER_STEP
FAULT_STEP = 5
FAULTS = ("dies", "hangs", "shape")
HANG_S = 600.0


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of the corpus one after the other: (inputs_T, targets_T), both int64."""

    def __init__(self) -> None:
        length = CONFIG.context + 1
        corpus_N = Corpus.standard_library().bytes_N[: SEQUENCES * length].long()
        self.windows_NT = corpus_N.reshape(SEQUENCES, length)

    def __len__(self) -> int:
        return SEQUENCES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window_T = self.windows_NT[index]
        return window_T[:-1], window_T[1:]


@dataclass(frozen=True)
class Job:
    """Settings of one run. `out`: a folder for what each rank writes down."""

    out: str
    epochs: int = 3
    accumulate: int = 1  # microbatches of a step, on each rank
    fault: str = ""  # rank 1 has it in step FAULT_STEP: one of FAULTS, or ""
    timeout_s: float = 60.0  # the process group's
    zero_stage: int = 3  # DeepSpeed's

    @classmethod
    def from_command_line(cls) -> "Job":
        """Return the job with the settings of the command line."""
        parser = argparse.ArgumentParser()
        for name, field in cls.__dataclass_fields__.items():
            default = {} if name == "out" else {"default": field.default}
            option = f"--{name.replace('_', '-')}"
            parser.add_argument(option, type=field.type, required=name == "out", **default)
        return cls(**vars(parser.parse_args()))

    @property
    def timeout(self) -> timedelta:
        """The process group's timeout."""
        return timedelta(seconds=self.timeout_s)

    @staticmethod
    def model() -> GPT:
        """Return the model, with the same weights on every rank."""
        return GPT(CONFIG, seed=0)

    @staticmethod
    def optimizer(parameters: Iterable[Tensor]) -> torch.optim.SGD:
        """Return SGD with momentum."""
        return torch.optim.SGD(parameters, lr=0.03, momentum=0.9)

    @staticmethod
    def loss(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy of the next token."""
        return F.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())

    def batches(self, rank: int, size: int) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Yield for each step a rank's microbatches, as (inputs_BT, targets_BT)."""
        data, per_step = Windows(), SEQUENCES_PER_STEP // size
        sampler: DistributedSampler[int] = DistributedSampler(data, size, rank, seed=0)
        for epoch in range(self.epochs):
            sampler.set_epoch(epoch)
            for indices in torch.tensor(list(sampler)).split(per_step):
                shares = indices.tensor_split(self.accumulate)
                yield [
                    (window_BT[:, :-1], window_BT[:, 1:])
                    for window_BT in (data.windows_NT[share] for share in shares)
                ]

    def oracle(self) -> list[float]:
        """Return the loss before each step, of one process that takes whole batches."""
        model, losses = self.model(), []
        optimizer = self.optimizer(model.parameters())
        for ((inputs_BT, targets_BT),) in Job(self.out, self.epochs).batches(0, 1):
            loss = self.loss(model(inputs_BT), targets_BT)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses


class Record:
    """Losses of a rank, and when each of its steps ended. It also makes the job's fault."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.losses: list[float | None] = []
        self.ended_s: list[float] = []

    def step(self, loss: Tensor | float | None) -> None:
        """Write down a step that ended, with this rank's loss; None: it has none."""
        self.losses.append(None if loss is None else float(loss))
        self.ended_s.append(time.time())
        if self.job.fault and len(self.losses) == FAULT_STEP:
            self._fail()

    def _fail(self) -> None:
        if self.rank == 1:
            Path(self.job.out, "fault").write_text(repr(time.time()))
        if self.job.fault == "shape":
            dist.all_reduce(torch.zeros(2 + self.rank))
        elif self.rank == 1 and self.job.fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.rank == 1 and self.job.fault == "hangs":
            time.sleep(HANG_S)

    def save(self) -> None:
        """Write it into the job's folder."""
        path = Path(self.job.out, f"rank-{self.rank}.json")
        path.write_text(json.dumps({"losses": self.losses, "ended_s": self.ended_s}))
