"""Faults that take time. Each says what a diagnosis should find: its cause, and where it is.

fault            what it does                                         cause
SlowRank         every layer of one rank takes longer                 straggler
NoisyNeighbour   the same, in about half of the time                  straggler
Pauses           the host stops now and then, as in a collection      host
ItemPerStep      the host asks for a number in every step             host
SlowLoader       every batch comes late                               input
BarrierPerLayer  ranks wait for each other after every layer          barrier
Recompute        backward computes every forward once more            compute
"""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.profiler import record_function
from torch.utils.data import DataLoader

from labkit.comm import Group

_library = torch.library.Library("labkit", "DEF")
_library.define("wait(float seconds) -> ()")
_library.impl("wait", time.sleep, "CompositeExplicitAutograd")


def compute(seconds: float) -> None:
    """Wait in an operator of its own: to a profiler it looks like computing."""
    torch.ops.labkit.wait(seconds)


@dataclass(frozen=True)
class Fault:
    """Something that makes a run slow. rank: where; None: on every rank."""

    cause: ClassVar[str]
    """Its name in `profile.diagnose`."""
    is_everywhere: ClassVar[bool] = False
    """Every rank takes part, though it is one rank that suffers."""
    rank: int | None = None

    def switched_on(self, world: Group) -> AbstractContextManager[None]:
        """The fault, on this rank. A fault of the network has nothing to do there."""
        return nullcontext()


@contextmanager
def faults(world: Group, *chosen: Fault) -> Iterator[None]:
    """Switch faults on inside, each on the ranks that it is for."""
    with ExitStack() as stack:
        for fault in chosen:
            if fault.is_everywhere or fault.rank in (None, world.rank):
                stack.enter_context(fault.switched_on(world))
        yield


@dataclass(frozen=True)
class SlowRank(Fault):
    """Layers take `share` longer: 0.2 is a clock at 83%."""

    cause = "straggler"
    share: float = 0.2

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """After each layer's forward and backward the rank goes on computing for a while."""
        with _after_each(lambda took_s: compute(self.share * took_s)):
            yield


@dataclass(frozen=True)
class NoisyNeighbour(Fault):
    """Something else on the node takes the machine for half of the time, `period_s` at once."""

    cause = "straggler"
    share: float = 0.2
    period_s: float = 0.03

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """As SlowRank with twice the share, in periods drawn at random."""

        def slow(took_s: float) -> None:
            period = int(time.monotonic() / self.period_s)
            if random.Random(period).random() < 0.5:
                compute(2 * self.share * took_s)

        with _after_each(slow):
            yield


@dataclass(frozen=True)
class Pauses(Fault):
    """The host stops for `seconds` in every period: garbage collection, swapping."""

    cause = "host"
    seconds: float = 0.01
    period_s: float = 0.05

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """After the first layer of a period. Nothing is launched meanwhile, no operator runs."""
        last_s = time.monotonic()

        def pause(took_s: float) -> None:
            nonlocal last_s
            if time.monotonic() - last_s >= self.period_s:
                time.sleep(self.seconds)
                last_s = time.monotonic()

        with _after_each(pause):
            yield


@dataclass(frozen=True)
class ItemPerStep(Fault):
    """`.item()` of a gradient before each optimizer step: a check for nan, say.

    On a GPU the host waits for the device there, and the device then for the host, which has
    launched nothing ahead. A CPU rank has nothing to wait for: there `seconds` stands for the time
    until the device gets its next kernel.
    """

    cause = "host"
    seconds: float = 0.0

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """For torch's optimizers."""

        def look(optimizer: Optimizer, *_: Any) -> None:
            gradients = (p.grad for group in optimizer.param_groups for p in group["params"])
            for gradient in gradients:
                if gradient is not None:
                    gradient.sum().item()
                    break
            time.sleep(self.seconds)

        hook = register_optimizer_step_pre_hook(look)
        try:
            yield
        finally:
            hook.remove()


@dataclass(frozen=True)
class Jitter(Fault):
    """Layers take from 0 to 2 * `share` longer, other layers on other ranks: no fault by itself."""

    cause = "compute"
    share: float = 0.2

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """All ranks have the same times, each in a turn of its own: their sums are equal."""
        turn = world.rank

        def uneven(took_s: float) -> None:
            nonlocal turn
            turn += 1
            compute(2 * self.share * took_s * (turn % world.size) / max(1, world.size - 1))

        with _after_each(uneven):
            yield


@dataclass(frozen=True)
class BarrierPerLayer(Fault):
    """A barrier after each layer's forward and backward, left over from a search for an error.

    Without it ranks wait for the one with the longest sum of layers; with it, for the slowest of
    every layer. It costs what the layers' times differ by: see Jitter.
    """

    cause = "barrier"

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """For ranks that compute as many layers, in one order."""
        with _after_each(lambda took_s: world.barrier()):
            yield


@dataclass(frozen=True)
class SlowLoader(Fault):
    """Every batch of a DataLoader comes `seconds` late."""

    cause = "input"
    seconds: float = 0.01

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """For loaders over which an iteration begins inside. Their name is what profilers show."""
        batches = DataLoader.__iter__

        def late(loader: DataLoader) -> Iterator[Any]:
            iterator = batches(loader)
            while True:
                with record_function("enumerate(DataLoader)#SlowLoader"):
                    time.sleep(self.seconds)
                try:
                    yield next(iterator)
                except StopIteration:
                    return

        with mock.patch.object(DataLoader, "__iter__", late):
            yield


@dataclass(frozen=True)
class Recompute(Fault):
    """Backward computes each layer's forward once more, as if all of it were checkpointed."""

    cause = "compute"

    @contextmanager
    def switched_on(self, world: Group) -> Iterator[None]:
        """The seconds of the last forward are spent again before backward."""
        forward_s: dict[nn.Module, float] = {}

        def keep(module: nn.Module, took_s: float) -> None:
            forward_s[module] = took_s

        def again(module: nn.Module) -> None:
            compute(forward_s[module])

        with _around_layers(after_forward=keep, before_backward=again):
            yield


def _nothing(module: nn.Module, *took_s: float) -> None:
    pass


@contextmanager
def _around_layers(
    after_forward: Callable[[nn.Module, float], None] = _nothing,
    before_backward: Callable[[nn.Module], None] = _nothing,
    after_backward: Callable[[nn.Module, float], None] = _nothing,
) -> Iterator[None]:
    """Call these for every layer, with the seconds that its forward or backward has taken."""
    began: dict[nn.Module, float] = {}

    def begin(module: nn.Module, *_: Any) -> None:
        began[module] = time.perf_counter()

    def end_forward(module: nn.Module, *_: Any) -> None:
        if _is_layer(module):
            after_forward(module, time.perf_counter() - began[module])

    def begin_backward(module: nn.Module, *_: Any) -> None:
        if _is_layer(module):
            before_backward(module)
        begin(module)

    def end_backward(module: nn.Module, *_: Any) -> None:
        if _is_layer(module):
            after_backward(module, time.perf_counter() - began[module])

    hooks = [
        global_hooks.register_module_forward_pre_hook(begin),
        global_hooks.register_module_forward_hook(end_forward),
        global_hooks.register_module_full_backward_pre_hook(begin_backward),
        global_hooks.register_module_full_backward_hook(end_backward),
    ]
    try:
        with warnings.catch_warnings():
            # The first layer, whose input needs no gradient: its hook is called all the same.
            warnings.filterwarnings("ignore", "Full backward hook is firing")
            # Modules that return more than tensors, such as a router, are no layers.
            warnings.filterwarnings("ignore", "For backward hooks to be called")
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _after_each(then: Callable[[float], None]) -> AbstractContextManager[None]:
    """Call `then` with the seconds of each layer's forward and of each backward."""

    def after(module: nn.Module, took_s: float) -> None:
        then(took_s)

    return _around_layers(after_forward=after, after_backward=after)


def _is_layer(module: nn.Module) -> bool:
    """A module that computes by itself, and not through others."""
    return not any(True for _ in module.children())
