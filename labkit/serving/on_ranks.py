"""One engine on several ranks: rank 0 leads, and the others make the same passes.

    rank 0   add(a), cancel(3)   step: send [a, 3] -> plan -> pass -> sample -> outputs, returned
    rank 1                       follow:  receive  -> plan -> pass -> sample -> outputs, dropped
    rank 2                       follow:  receive  -> plan -> pass -> sample -> outputs, dropped

Every rank has the same Engine, of a decoder from parallel_decoders.py and a cache of its own. A
scheduler is a pure function, a request draws from a seed of its own, and the decoder gives every
rank the same bits. So all ranks plan the same passes and sample the same tokens, and nothing of it
is sent. Only what comes from outside is: new requests, and those that were cancelled.

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

Failure. A rank that raises or dies ends the step with an error on every rank: RuntimeError, a peer
is gone. Ranks are then in different places of a pass, so the Leader makes no other step: start the
ranks again. An error that is the request's fault, such as a prompt that is too long, is raised by
`add` on rank 0, before anything is sent.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import torch

from labkit.comm import Group
from labkit.model import GPTConfig
from labkit.serving.requests import Request
from labkit.serving.serving_engine import Engine, Output


class Leader(Engine):
    """The Engine of rank 0, whose passes the other ranks of the group make, too: `follow`.

    `close` lets the others return. At the end of a `with` it is called, unless an error leads out.
    """

    def __init__(self, engine: Engine, group: Group) -> None:
        """engine: of this rank, any kind; every other rank has an equal one."""
        raise NotImplementedError

    def add(self, request: Request) -> int:
        """As of Engine. The other ranks hear of it at the next step."""
        raise NotImplementedError

    def cancel(self, id: int) -> None:
        """As of Engine. The other ranks hear of it at the next step."""
        raise NotImplementedError

    def step(self) -> list[Output]:
        """As of Engine, on all ranks. Without work, too, it asks whether all ranks are alive.

        RuntimeError: a rank is gone, or an earlier step has failed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let the other ranks return from `follow`; requests that still run are dropped.

        After a step that failed, and a second time, it does nothing.
        """
        raise NotImplementedError

    def __enter__(self) -> Self:
        """For the length of a `with`, then closed."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it; not where an error leads out, since ranks may be in the midst of a pass."""
        if error is None:
            self.close()


def follow(engine: Engine, group: Group) -> None:
    """Make the passes of rank 0's Leader with this rank's engine, until the Leader is closed.

    RuntimeError: a rank is gone.
    """
    raise NotImplementedError


def agreed_num_pages(
    config: GPTConfig,
    num_bytes: int,
    group: Group,
    page_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> int:
    """How many pages fit into the memory of every rank: the least number of all ranks.

    config: decoder.cache_config, this rank's share. num_bytes: for the cache, on this rank.
    With numbers of their own, ranks would plan different passes. Wire: an all-reduce of 8 bytes.
    """
    raise NotImplementedError
