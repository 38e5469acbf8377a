"""A small GPT trained by a parameter server and its workers, on real processes.

    rank 0 (server)       w, optimizer          <-- gradient, its version, loss --   rank 1, 2, ...
                                                --- version, w ------------------>   (workers)

Layout: the server has parameters and optimizer state; a worker has parameters for one step.
Wire: for each gradient one message of its size to the server, and one of the parameters' size back,
with a header each. Everything goes through the server's link: n workers, n times the bytes.
Paper: Dean et al., "Large scale distributed deep networks", NIPS 2012.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.comm import Group
from labkit.data import Corpus
from labkit.data_parallel.flattening import flattened, put
from labkit.data_parallel.parameter_server.modes import (
    SYNCHRONOUS,
    Asynchronous,
    Mode,
    Synchronous,
)
from labkit.data_parallel.parameter_server.server import OVER, Arrival, Server
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig, copy_parameters, loss


@dataclass(frozen=True, eq=False)
class Served:
    """What the server has seen."""

    arrivals: list[Arrival]
    """Every gradient, in the order in which it came."""
    seconds: float
    """From the first parameters sent to the last gradient received."""
    parameters: dict[str, Tensor]

    @property
    def staleness(self) -> list[int]:
        """Of each gradient that was used, in order."""
        return [each.staleness for each in self.arrivals if each.is_used]

    @property
    def gradients_per_s(self) -> float:
        """Used ones."""
        return len(self.staleness) / self.seconds


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    mode: Mode = SYNCHRONOUS,
    corpus: Corpus | None = None,
    *,
    delay: Mapping[int, float] | None = None,
) -> Served | None:
    """Train for num_steps steps of the server; see `modes`.

    Asynchronously until as many gradients are used as in steps with all workers: num_steps of each.
    (The first k of n use fewer: k in a step.)

    delay: seconds that a rank sleeps before each gradient, {2: 0.05}. Returns what the server has
    seen, on rank 0, and None elsewhere. All workers' parameters are the server's, so seeds need not
    agree. ValueError for a world without a worker, and for delays of ranks that are none.
    """
    if delay is not None and not isinstance(delay, Mapping):
        raise TypeError(f"delay={delay!r:.80}: give seconds by rank, such as {{2: 0.05}}")
    delay = dict(delay or {})
    _check(world, mode, delay)
    module = GPT(config, settings.seed, settings.dtype).to(world.device)
    if world.rank:
        _work(world, module, settings, corpus, config.context, delay.get(world.rank, 0.0))
        return None
    num_workers = world.size - 1
    num_steps = settings.num_steps * (num_workers if isinstance(mode, Asynchronous) else 1)
    optimizer = settings.make_optimizer(module.parameters())
    return _serve(world, Server(module, optimizer, mode, num_workers, num_steps))


def _check(world: Group, mode: Mode, delay: Mapping[int, float]) -> None:
    if world.size < 2:
        raise ValueError("a parameter server needs a worker: run it on 2 ranks or more")
    if not isinstance(mode, Synchronous | Asynchronous):
        raise TypeError(
            f"mode={mode!r}: give Synchronous(), Synchronous(first=2) or Asynchronous()"
        )
    if isinstance(mode, Synchronous):
        mode.num_gradients(world.size - 1)
    for rank, seconds in delay.items():
        allowed = "seconds to sleep, from 0 and below an hour"
        arguments.number(f"delay[{rank!r}]", seconds, allowed, least=0, below=3600)
    if strangers := [rank for rank in delay if rank not in range(1, world.size)]:
        raise ValueError(f"delay={delay}: workers are ranks 1 to {world.size - 1}, not {strangers}")


def _serve(world: Group, server: Server) -> Served:
    """A thread for each worker, until all have been told that training is over."""
    began_s = time.perf_counter()
    threads = ThreadPoolExecutor(server.num_workers)
    try:
        for served in as_completed(
            [threads.submit(server.serve, world, w) for w in range(1, world.size)]
        ):
            served.result()
    finally:
        threads.shutdown(wait=False)  # after an error, some still wait for their workers
    return Served(server.arrivals, time.perf_counter() - began_s, copy_parameters(server.module))


def _work(
    world: Group,
    module: nn.Module,
    settings: TrainConfig,
    corpus: Corpus | None,
    context: int,
    delay_s: float,
) -> None:
    """A worker: its share of one batch after the other, under whatever parameters it gets."""
    batches, num_workers = settings.batches(corpus, context), world.size - 1
    flat = flattened(module.parameters())
    header = torch.empty(1, dtype=torch.int64, device=world.device)
    for step in itertools.count():
        version = int(world.recv(header, src=0).item())
        if version == OVER:
            return
        put(world.recv(flat, src=0), module.parameters())
        with world.region("gradient"):
            time.sleep(delay_s)
            batch = batches.at(step)
            share = batch.share(world.rank - 1, num_workers).to(world.device)
            module.zero_grad()
            value = loss(module, share)
            part = share.num_targets / max(1, batch.num_targets)
            (value * (part * num_workers)).backward()
        told = torch.tensor([version, value.item()], dtype=torch.float64, device=world.device)
        world.send(told, dst=0)
        world.send(flattened(gradients_of(module)), dst=0)


def gradients_of(module: nn.Module) -> list[Tensor]:
    """Of all parameters, in order; zeros where the loss did not use one."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
