"""A parameter server: one rank owns the parameters; workers fetch them and send gradients.

    run(parameter_server.train, 4, args=(config, settings, Asynchronous()))

    rank 0 (server)       w, optimizer          <-- gradient, its version, loss --   rank 1, 2, ...
                                                --- version, w ------------------>   (workers)

The server has a thread for each worker:

    thread of worker w     recv (version, loss), gradient -> arrive() -> send version, parameters

`arrive` returns when the worker may continue: at once, or after the step that uses its gradient.
All threads share one lock, so steps happen one after the other. The mode decides when the server
makes a step:

    Synchronous()       with the gradients of all workers, who wait for it
    Synchronous(k)      with the first k; gradients that arrive later are dropped
    Asynchronous()      with every gradient, as it comes; no worker waits

A gradient's staleness is the number of steps that the server has made since the worker got its
parameters. Synchronous gradients have staleness 0. With n equally fast workers, asynchronous ones
have n - 1: meanwhile the server has made a step with a gradient of each other worker.

Layout: the server has parameters and optimizer state; a worker has parameters for one step.
Wire: for each gradient one message of its size to the server, and one of the parameters' size back,
with a header each. Everything goes through the server's link: n workers, n times the bytes.
Papers: Dean et al., "Large scale distributed deep networks", NIPS 2012; Li et al., "Scaling
distributed machine learning with the parameter server", OSDI 2014; Chen et al., "Revisiting
distributed synchronous SGD", arXiv:1604.00981 (the first k of n: the other n - k are its backup
workers).
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.data import Corpus
from labkit.data_parallel.reduction import copy_from_flat, flattened, parts_of
from labkit.model import GPT, GPTConfig
from labkit.optimizer import Optimizer
from labkit.train import TrainConfig, copy_parameters, loss

__all__ = ["Asynchronous", "Mode", "Server", "ServerResult", "Synchronous", "serve", "train"]


@dataclass(frozen=True)
class Synchronous:
    """Step with the mean of `first` gradients of the newest parameters; None: of all workers."""

    first: int | None = None

    def num_gradients(self, num_workers: int) -> int:
        """Return how many gradients a step takes. ValueError unless there are that many workers."""
        first = num_workers if self.first is None else self.first
        if not 1 <= first <= num_workers:
            raise ValueError(
                f"first={first} of {num_workers} workers: a step takes 1 to {num_workers} gradients"
            )
        return first


@dataclass(frozen=True)
class Asynchronous:
    """Step with every gradient, however old the parameters it was computed with."""


Mode = Synchronous | Asynchronous
SYNCHRONOUS = Synchronous()


OVER = -1


@dataclass(frozen=True)
class Arrival:
    """One gradient that arrived at the server."""

    worker: int
    at_s: float
    """Seconds since the server was made."""
    loss: float
    """Loss of the worker's share of its batch, with the parameters that the worker had."""
    staleness: int
    """Steps that the server had made since it sent those parameters."""
    is_used: bool
    """False if the gradient arrived too late and was dropped."""


@dataclass
class Server:
    """The parameters of `module`, and the gradients so far. Any thread may call its methods."""

    module: nn.Module
    optimizer: Optimizer
    mode: Mode
    num_workers: int
    num_steps: int
    """Steps until training is over."""
    arrivals: list[Arrival] = field(default_factory=list)
    version: int = 0
    """Number of steps made."""
    step_s: float = 0.0
    """Seconds in which the server made steps."""
    _failure: BaseException | None = None
    _waiting: list[Tensor] = field(default_factory=list)
    _began_s: float = field(default_factory=time.perf_counter)
    _stepped: threading.Condition = field(default_factory=threading.Condition)

    @property
    def is_over(self) -> bool:
        """True if all steps have been made."""
        return self.version >= self.num_steps

    def serve(self, group: Group, worker: int) -> None:
        """Send parameters to one worker and receive its gradients, until training is over.

        An error here also ends the threads that wait for a step.
        """
        try:
            flat = torch.empty_like(self.current()[1])
            header = torch.empty(2, dtype=torch.float64, device=group.device)
            while self._send(group, worker):
                version, loss = group.recv(header, worker).tolist()
                self.arrive(worker, int(version), loss, group.recv(flat, worker))
        except BaseException as error:
            with self._stepped:
                self._failure = error
                self._stepped.notify_all()
            raise

    def _send(self, group: Group, worker: int) -> bool:
        """Send version and parameters, or the end of training; return whether it goes on."""
        version, parameters = self.current()
        if self.is_over:
            group.send(torch.tensor([OVER], device=group.device), worker)
            return False
        group.send(torch.tensor([version], device=group.device), worker)
        group.send(parameters, worker)
        return True

    def current(self) -> tuple[int, Tensor]:
        """Return the version, and a copy of its parameters, (numel,)."""
        with self._stepped:
            return self.version, flattened(self.module.parameters())

    def arrive(self, worker: int, version: int, loss: float, gradient: Tensor) -> None:
        """Add a gradient, (numel,); return when its worker may continue."""
        with self._stepped:
            is_old = version < self.version
            is_late = self.is_over or (is_old and not isinstance(self.mode, Asynchronous))
            self.arrivals.append(
                Arrival(
                    worker,
                    time.perf_counter() - self._began_s,
                    loss,
                    self.version - version,
                    is_used=not is_late,
                )
            )
            if is_late:
                return
            self._waiting.append(gradient.clone())
            if len(self._waiting) == self._gradients_per_step:
                self._step()
            else:
                self._stepped.wait_for(lambda: self.version > version or self._failure)
                if self._failure is not None:
                    raise RuntimeError("another thread of the server has failed") from self._failure

    @property
    def _gradients_per_step(self) -> int:
        if isinstance(self.mode, Asynchronous):
            return 1
        return self.mode.num_gradients(self.num_workers)

    def _step(self) -> None:
        began_s = time.perf_counter()
        mean = torch.stack(self._waiting).mean(0)
        self._waiting.clear()
        for parameter, part in parts_of(mean, self.module.parameters()):
            parameter.grad = part
        self.optimizer.step()
        self.version += 1
        self.step_s += time.perf_counter() - began_s
        self._stepped.notify_all()


@dataclass(frozen=True, eq=False)
class ServerResult:
    """A record of what the server received."""

    arrivals: list[Arrival]
    """Every gradient, in the order in which it came."""
    seconds: float
    """From the first parameters sent to the last gradient received."""
    parameters: dict[str, Tensor]

    @property
    def staleness(self) -> list[int]:
        """Staleness of each gradient that was used, in order."""
        return [each.staleness for each in self.arrivals if each.is_used]

    @property
    def gradients_per_s(self) -> float:
        """Gradients used per second."""
        return len(self.staleness) / self.seconds


def train(
    world: Group,
    config: GPTConfig,
    settings: TrainConfig,
    mode: Mode = SYNCHRONOUS,
    corpus: Corpus | None = None,
    *,
    delay: Mapping[int, float] | None = None,
) -> ServerResult | None:
    """Train for num_steps steps of the server; return its record on rank 0, None elsewhere.

    Asynchronous training makes num_steps steps per worker, so that it uses as many gradients as
    Synchronous() does.

    delay: seconds that a rank sleeps before each gradient, {2: 0.05}. Workers get their parameters
    from the server, so seeds need not agree. ValueError for a world without a worker, and for
    delays of unknown ranks.
    """
    delay = dict(delay or {})
    _check(world, mode, delay)
    module = GPT(config, settings.seed, settings.dtype).to(world.device)
    if world.rank:
        _work(world, module, settings, corpus, config.context, delay.get(world.rank, 0.0))
        return None
    num_workers = world.size - 1
    num_steps = settings.num_steps * (num_workers if isinstance(mode, Asynchronous) else 1)
    optimizer = settings.make_optimizer(module.parameters())
    return serve(world, Server(module, optimizer, mode, num_workers, num_steps))


def _check(world: Group, mode: Mode, delay: Mapping[int, float]) -> None:
    if world.size < 2:
        raise ValueError("a parameter server needs a worker: run it on 2 ranks or more")
    if not isinstance(mode, Synchronous | Asynchronous):
        raise TypeError(
            f"mode={mode!r}: give Synchronous(), Synchronous(first=2) or Asynchronous()"
        )
    if isinstance(mode, Synchronous):
        mode.num_gradients(world.size - 1)
    if strangers := [rank for rank in delay if rank not in range(1, world.size)]:
        raise ValueError(f"delay={delay}: workers are ranks 1 to {world.size - 1}, not {strangers}")


def serve(world: Group, server: Server) -> ServerResult:
    """Start a thread for each worker, all other ranks, and wait until training has ended for all.

    Each of them calls `work`.
    """
    began_s = time.perf_counter()
    threads = ThreadPoolExecutor(server.num_workers)
    try:
        for served in as_completed(
            [threads.submit(server.serve, world, w) for w in range(1, world.size)]
        ):
            served.result()
    finally:
        threads.shutdown(wait=False)  # after an error, some still wait for their workers
    return ServerResult(
        server.arrivals, time.perf_counter() - began_s, copy_parameters(server.module)
    )


def _work(
    world: Group,
    module: nn.Module,
    settings: TrainConfig,
    corpus: Corpus | None,
    context: int,
    delay_s: float,
) -> None:
    """Train as a worker, with the gradients of this worker's share of each batch."""
    batches, num_workers = settings.batches(corpus, context), world.size - 1

    def gradient(step: int) -> float:
        time.sleep(delay_s)
        batch = batches.at(step)
        share = batch.share(world.rank - 1, num_workers).to(world.device)
        value = loss(module, share)
        part = share.num_targets / max(1, batch.num_targets)
        (value * (part * num_workers)).backward()
        return value.item()

    work(world, module, gradient)


def work(world: Group, module: nn.Module, gradient: Callable[[int], float]) -> None:
    """Be a worker of `serve`: fetch parameters, compute a gradient, send it, until it is over.

    gradient(step): computes gradients of `module`, which has the fetched parameters, by backward;
    returns the loss. `step` counts this worker's gradients, from 0.
    """
    flat = flattened(module.parameters())
    header = torch.empty(1, dtype=torch.int64, device=world.device)
    for step in itertools.count():
        version = int(world.recv(header, src=0).item())
        if version == OVER:
            return
        copy_from_flat(world.recv(flat, src=0), module.parameters())
        with world.region("gradient"):
            module.zero_grad()
            value = gradient(step)
        header_out = torch.tensor([version, value], dtype=torch.float64, device=world.device)
        world.send(header_out, dst=0)
        world.send(flattened(gradients_of(module)), dst=0)


def gradients_of(module: nn.Module) -> list[Tensor]:
    """Return gradients of all parameters, in order; zeros where the loss did not use one."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
