"""Unequal shares: each rank gets rows of the batch in proportion to its measured speed.

    16 rows on 4 ranks; rank 3 takes three times as long for a row as the others

    equal    rank 0  ####........    4 rows      by speed    rank 0  #####    5 rows
             rank 1  ####........    4                       rank 1  #####    5
             rank 2  ####........    4                       rank 2  #####    5
             rank 3  ############    4                       rank 3  ###..    1

`SpeedBalancer` measures the seconds of a row on each rank, while the run trains. Every few steps
the ranks exchange these seconds, and all compute the same shares from the same numbers.

The gradient of the batch is a mean over its targets. A rank with more targets weighs more:

    g = sum over ranks of (targets of the rank / targets of the batch) * mean gradient of the rank

A wrapper of the ladder divides the sum by n. So `train_step` multiplies each rank's loss by n times
its part of the targets. A rank without rows takes part with zeros.

Layout: as DDP; the batch is cut into ranges of rows of unequal size.
Wire: as DDP, and an all-gather of 8 bytes per rank at each balancing.
Paper: Chen et al., "Semi-Dynamic Load Balancing" (LB-BSP), SoCC 2020, arXiv:1806.02508.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group
from labkit.data import Batch, Corpus
from labkit.data_parallel.ddp import DDP, train_step
from labkit.data_parallel.replica import Replica
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig, Trained, copy_parameters, fit, summed_losses


def shares_by_speed(rows: int, speeds: Sequence[float], least: int = 0) -> list[int]:
    """Return whole rows for each rank, so that the slowest rank finishes as early as possible.

    speeds: rows per second, or any numbers in proportion to them. least: rows of each rank, at
    least. Each further row goes to the rank that would finish it first, which is exact for equal
    rows. shares_by_speed(16, [3, 3, 3, 1]) == [5, 5, 5, 1]
    ValueError for a negative speed, if all are 0, and if `rows` are fewer than `least` on each.
    """
    for rank, speed in enumerate(speeds):
        arguments.number(f"speeds[{rank}]", speed, "rows per second, 0 or more", least=0)
    if not any(speeds):
        raise ValueError(f"speeds={list(speeds)}: give one rank a speed above 0")
    if least * len(speeds) > rows:
        raise ValueError(
            f"rows={rows} are fewer than {least} on each of {len(speeds)} ranks; give a larger "
            "batch, or fewer ranks"
        )
    shares = [least] * len(speeds)
    able = [rank for rank, speed in enumerate(speeds) if speed]
    for _ in range(rows - sum(shares)):
        first = min(able, key=lambda rank: (shares[rank] + 1) / speeds[rank])
        shares[first] += 1
    return shares


def share_of(batch: Batch, shares: Sequence[int], rank: int) -> Batch:
    """Return the rows of one rank. ValueError unless the shares add up to the batch's rows."""
    if sum(shares) != len(batch):
        raise ValueError(
            f"shares={list(shares)} add up to {sum(shares)}, and the batch has {len(batch)} rows; "
            "give each row to one rank"
        )
    inputs, targets = (x.split(list(shares))[rank] for x in (batch.inputs_BT, batch.targets_BT))
    return Batch(inputs, targets)


class SpeedBalancer:
    """Shares of the next batch, by the speed that ranks had in the last ones.

        balancer = SpeedBalancer(model, rows=32)
        for each step:
            share = share_of(batch, balancer.shares, world.rank)
            with balancer.timed():
                train_step(model, optimizer, batch, share)

    The measured time ends when the rank's last gradient is there. The wait for other ranks comes
    later and does not count. If the wait counted, all ranks would look equally slow.
    The median over `every` steps leaves out a single pause.
    With a fixed time per step, seconds per row depend on the share. The shares settle where all
    ranks take equally long.
    """

    def __init__(
        self, model: Replica, rows: int, *, every: int = 4, gain: float = 0.05, least: int = 1
    ) -> None:
        """Start with shares that are as equal as possible.

        rows: of the whole batch. every: steps between two balancings. gain: shares change only if
        the slowest rank would save more than this share of its time: each change gives layers new
        shapes, which compiled programs and captured graphs must be made for. least: rows of each
        rank, at least 1, because a rank without rows is not measured.
        ValueError for fewer rows than `least` on each rank, TypeError for numbers of other kinds.
        """
        arguments.whole("every", every, "1 or more")
        arguments.whole("least", least, "1 or more: a rank without rows is not measured")
        arguments.number("gain", gain, "a share of the time, 0 or more, below 1", least=0, below=1)
        self.group = model.group
        self.rows, self.every, self.gain, self.least = rows, every, gain, least
        self.shares = shares_by_speed(rows, [1.0] * self.group.size, least)
        """Rows of each rank in the next step, the same on all ranks."""
        self._row_s: list[float] = []
        self._arrived_s = arrived_s = [0.0]  # a list: a hook that held `self` would keep it alive

        def note(parameter: Tensor) -> None:
            arrived_s[0] = time.perf_counter()

        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(note)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Measure this step, and balance at every `every`th. All ranks make the same steps.

        On a GPU, kernels run after their launch: time them by CUDA events, and call `balance`.
        Wire: an all-gather of 8 bytes per rank, when it balances.
        """
        began_s = time.perf_counter()
        yield
        took_s = self._arrived_s[0] - began_s
        self._row_s.append(took_s / self.shares[self.group.rank])
        if len(self._row_s) == self.every:
            self.balance(median(self._row_s))
            self._row_s.clear()

    def balance(self, row_s: float) -> None:
        """Change the shares if that saves enough. All ranks call it.

        row_s: seconds of a row on this rank, above 0.
        """
        mine = torch.tensor([row_s], dtype=torch.float64, device=self.group.device)
        with self.group.label("seconds of a row"):
            row_s_by_rank = self.group.all_gather(mine).tolist()
        shares = shares_by_speed(self.rows, [1 / each for each in row_s_by_rank], self.least)
        now_s, then_s = (
            max(share * each for share, each in zip(shares, row_s_by_rank, strict=True))
            for shares in (self.shares, shares)
        )
        if then_s < (1 - self.gain) * now_s:
            self.shares = shares


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    corpus: Corpus | None = None,
    shares: Sequence[int] | None = None,
    strategy: Callable[..., Replica] = DDP,
    every: int = 4,
) -> tuple[Trained, list[list[int]]]:
    """Run `labkit.train.train_serial` with unequal shares: run(train, 4, args=(config, settings)).

    shares: rows of each rank in all steps, 0 too; None: by measured speed, balanced every `every`
    steps. Every rank returns the losses and parameters, which equal the serial ones up to
    rounding, and the shares of each step. corpus: None for Python's standard library.
    """
    module = GPT(config, settings.seed, settings.dtype).to(world.device)
    model = strategy(module, world)
    optimizer = settings.make_optimizer(module.parameters())
    balancer = None if shares else SpeedBalancer(model, settings.num_sequences, every=every)
    history: list[list[int]] = []

    def step(batch: Batch) -> float:
        rows = balancer.shares if balancer else list(shares or ())
        history.append(rows)
        share = share_of(batch, rows, world.rank)
        if balancer is None:
            return train_step(model, optimizer, batch, share)
        with balancer.timed():
            return train_step(model, optimizer, batch, share)

    parts = fit(step, config, settings, corpus)
    return Trained(summed_losses(parts, world), copy_parameters(module)), history
