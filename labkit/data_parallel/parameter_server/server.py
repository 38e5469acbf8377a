"""The server: it keeps the parameters, and a thread for each worker.

    thread of worker w     recv (version, loss), gradient -> arrive() -> send version, parameters

`arrive` returns when that worker shall go on: at once, or after the step that its gradient is part
of. All threads share one lock, so steps happen one after the other.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from labkit.comm import Group
from labkit.data_parallel.flattening import flattened, parts_of
from labkit.data_parallel.parameter_server.modes import Asynchronous, Mode
from labkit.optimizer import Optimizer

OVER = -1


@dataclass(frozen=True)
class Arrival:
    """One gradient that came to the server."""

    worker: int
    at_s: float
    """Since the first parameters were sent."""
    loss: float
    """Of the worker's share of its batch, under the parameters that it had."""
    staleness: int
    """Steps that the server had made since it sent those."""
    is_used: bool
    """False for one that came too late to be among the first."""


@dataclass
class Server:
    """The parameters of `module`, and what has come in. All methods are safe from any thread."""

    module: nn.Module
    optimizer: Optimizer
    mode: Mode
    num_workers: int
    num_steps: int
    """Steps until training is over."""
    arrivals: list[Arrival] = field(default_factory=list)
    version: int = 0
    """How many steps have been made."""
    _failure: BaseException | None = None
    _waiting: list[Tensor] = field(default_factory=list)
    _began_s: float = field(default_factory=time.perf_counter)
    _stepped: threading.Condition = field(default_factory=threading.Condition)

    @property
    def is_over(self) -> bool:
        """Whether all steps have been made."""
        return self.version >= self.num_steps

    def serve(self, group: Group, worker: int) -> None:
        """Everything that one worker needs, until training is over.

        An error here ends the other workers' threads as well.
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
        """Send version and parameters, or that it is over; whether it goes on."""
        version, parameters = self.current()
        if self.is_over:
            group.send(torch.tensor([OVER], device=group.device), worker)
            return False
        group.send(torch.tensor([version], device=group.device), worker)
        group.send(parameters, worker)
        return True

    def current(self) -> tuple[int, Tensor]:
        """The version, and a copy of all parameters, (numel,), that belong to it."""
        with self._stepped:
            return self.version, flattened(self.module.parameters())

    def arrive(self, worker: int, version: int, loss: float, gradient: Tensor) -> None:
        """Take in a gradient, (numel,); return when its worker shall have new parameters."""
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
            if len(self._waiting) == self._needs:
                self._step()
            else:
                self._stepped.wait_for(lambda: self.version > version or self._failure)
                if self._failure is not None:
                    raise RuntimeError("another thread of the server has failed") from self._failure

    @property
    def _needs(self) -> int:
        """Gradients per step."""
        if isinstance(self.mode, Asynchronous):
            return 1
        return self.mode.num_gradients(self.num_workers)

    def _step(self) -> None:
        mean = torch.stack(self._waiting).mean(0)
        self._waiting.clear()
        for parameter, part in parts_of(mean, self.module.parameters()):
            parameter.grad = part
        self.optimizer.step()
        self.version += 1
        self._stepped.notify_all()
