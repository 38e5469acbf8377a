"""One engine on several ranks: rank 0 leads, and the others make the same passes.

    rank 0   add(a), cancel(3)   step: send [a, 3] -> plan -> pass -> sample -> outputs, returned
    rank 1                       follow:  receive  -> plan -> pass -> sample -> outputs, dropped
    rank 2                       follow:  receive  -> plan -> pass -> sample -> outputs, dropped

Every rank has the same Engine, of a decoder from parallel_decoders.py and a cache of its own. A
scheduler is a pure function, a request draws from a seed of its own, and the decoder gives every
rank the same bits. So all ranks plan the same passes and sample the same tokens, without sending
plans or tokens. Only outside events are sent: new and cancelled requests.

    def serve(world, model, requests):
        decoder = TensorParallelDecoder(parallelize(model, world))
        num_pages = agreed_num_pages(decoder.cache_config, free_bytes, world)
        engine = Engine(decoder, PagedCache(decoder.cache_config, num_pages), continuous)
        if world.rank:
            return follow(engine, world)
        with Leader(engine, world) as leader:
            return leader.generate(requests)

Wire of a step, besides the decoder's: a broadcast of 8 bytes, and one of the events if there are
any. vLLM sends the scheduler's output instead, from its engine to all workers.

All inputs of an engine's decisions must be equal on all ranks. agreed_num_pages makes the number of
pages equal. With max_host_bytes of a SwappingEngine, ranks with unequal numbers of layers would
decide differently.

Failure. If a rank dies, ranks that exchange data with it get a RuntimeError. When these end, the
others get one, too. If a rank raises, the run ends, and its error names that rank and where the
others wait. Ranks are then at different places of a pass, so the Leader makes no other step: start
the ranks again. `add` raises errors of a request, such as a prompt that is too long, before
anything is sent.
"""

from __future__ import annotations

import pickle
from typing import Self

import torch

from labkit.comm import Group
from labkit.model import GPTConfig
from labkit.serving.requests import Request
from labkit.serving.serving_engine import Engine, EngineClient, Output

_Event = Request | int
"""A request that was added, or the id of one that was cancelled."""

_PASS = "pass"  # a label: ranks call an engine's operations from different lines


class EngineWithRanks(EngineClient):
    """An engine that other ranks work for, until `close` lets them return.

    A `with` calls it at the end, but not after an error: ranks may then be in the middle of a pass,
    and would not receive it.
    """

    def close(self) -> None:
        """Let the other ranks return; requests that still wait or run are dropped."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Use it in a `with`, which closes it."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Close it, but not after an error."""
        if kind is None:
            self.close()


class Leader(EngineWithRanks):
    """The engine of rank 0. The other ranks of the group make the same passes: `follow`."""

    def __init__(self, engine: Engine, group: Group) -> None:
        """engine: of this rank, any kind; every other rank has an equal one."""
        self.config, self.capacity = engine.config, engine.capacity
        # The engine changes these in place.
        self.waiting, self.running, self.counts = engine.waiting, engine.running, engine.counts
        self._engine, self._group = engine, group
        self._events: list[_Event] = []
        self._is_open = True

    @property
    def num_free_pages(self) -> int:
        """Like EngineClient, equal on every rank."""
        return self._engine.num_free_pages

    def add(self, request: Request) -> int:
        """Like Engine. The other ranks receive it at the next step."""
        id = self._engine.add(request)
        self._events.append(request)
        return id

    def cancel(self, id: int) -> None:
        """Like Engine. The other ranks receive it at the next step."""
        self._engine.cancel(id)
        self._events.append(id)

    def step(self) -> list[Output]:
        """Like Engine, on all ranks. Without work, it only sends, and so finds ranks that died.

        RuntimeError: a rank is gone, an earlier step has failed, or the Leader is closed.
        """
        if not self._is_open:
            raise RuntimeError(
                "this Leader is closed, or a step has failed, and its ranks no longer make the "
                "same passes; start the ranks again, with a new engine on each"
            )
        self._is_open = False  # until the step has ended well
        _on_every_rank(self._events, self._group)
        self._events.clear()
        with self._group.label(_PASS):
            outputs = self._engine.step()
        self._is_open = True
        return outputs

    def close(self) -> None:
        """Close the engine on all ranks. After a failed step or a first close, do nothing."""
        if self._is_open:
            self._is_open = False
            _on_every_rank(None, self._group)


def follow(engine: Engine, group: Group) -> None:
    """Make the passes of rank 0's Leader with this rank's engine, until the Leader is closed.

    RuntimeError: a rank is gone.
    """
    while (events := _on_every_rank([], group)) is not None:
        for event in events:
            if isinstance(event, Request):
                engine.add(event)
            else:
                engine.cancel(event)
        with group.label(_PASS):
            engine.step()


def _on_every_rank(events: list[_Event] | None, group: Group) -> list[_Event] | None:
    """Return rank 0's events on every rank; None: the end. Wire: broadcasts of 8 bytes and the
    events."""
    data = pickle.dumps(events) if group.rank == 0 and events != [] else b""
    with group.label("requests"):
        num_bytes = int(group.broadcast(torch.tensor([len(data)], device=group.device)))
        if not num_bytes:
            return []
        buffer = torch.tensor(list(data) or [0] * num_bytes, dtype=torch.uint8, device=group.device)
        received = group.broadcast(buffer)
    result: list[_Event] | None = pickle.loads(bytes(received.tolist()))
    return result


def agreed_num_pages(
    config: GPTConfig,
    num_bytes: int,
    group: Group,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> int:
    """Return how many pages fit into the memory of every rank: the least number of all ranks.

    config: decoder.cache_config, this rank's share. num_bytes: for the cache, on this rank. With
    different numbers, ranks would plan different passes. Wire: an all-reduce of 8 bytes.
    """
    numbers_per_slot = 2 * config.num_layers * config.kv_heads * config.head_dim
    here = num_bytes // (page_size * numbers_per_slot * dtype.itemsize)
    return int(group.all_reduce(torch.tensor(here, device=group.device), "min"))
