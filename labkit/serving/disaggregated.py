"""Prefill and decode on different ranks, with keys and values sent between them.

    together   rank 0   t t t [ prompt a ] t t t t [ prompt b ] t t     a gap in every answer

    apart      rank 1         [ prompt a ]         [ prompt b ]         keys and values
                                         \\ sent              \\
               rank 0   t t t t t t t t t t t t t t t t t t t t t t     single tokens only

A prompt takes long, since its tokens keep the arithmetic units busy. A single token reads all
weights for little arithmetic. In one pass the single tokens wait for the prompt; chunked prefill
makes that wait shorter, and a separate rank removes it. Prefill and decode can then have different
numbers and kinds of ranks: here there is one of each.

Rank 1 computes all tokens of a prompt but the last, and sends their keys and values. Rank 0 copies
them into its cache, and computes the last token in a pass with the single tokens of other requests.
So only rank 0 samples. The first token takes one message and one pass longer than on a single rank.

    rank 0   with DisaggregatedEngine(Decoder(model), cache, preempting, world) as engine:
                 engine.generate(requests)
    rank 1   prefill(Decoder(model), cache, world)

A thread of rank 0 asks rank 1 for one prompt after the other. Received keys and values wait in
memory outside the cache until their request is admitted; max_waiting bounds their number. A
preempted request is computed again on rank 0, as in every Engine.

Wire of a prompt of n + 1 tokens: 8 n bytes, and 8 for their number, to rank 1; L G K n numbers
back, twice, as the cache stores them. Nothing for a prompt of one token. Real systems send each
layer as soon as it is computed.
Papers: Zhong et al., "DistServe", OSDI 2024; Patel et al., "Splitwise", ISCA 2024.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent import futures

import torch
from torch import Tensor

from labkit.comm import Group
from labkit.serving.caches import KVCache
from labkit.serving.decoder import Decoder
from labkit.serving.on_ranks import EngineWithRanks
from labkit.serving.requests import Generation, Request, ScheduledTokens
from labkit.serving.scheduler import Plan, Scheduler, State
from labkit.serving.serving_engine import Engine, Output


class DisaggregatedEngine(EngineWithRanks, Engine):
    """The Engine of rank 0, which computes single tokens; rank 1 computes prompts: `prefill`."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        scheduler: Scheduler,
        group: Group,
        *,
        max_waiting: int | None = None,
    ) -> None:
        """group: two ranks, used by this engine alone until it is closed."""
        super().__init__(decoder, cache, scheduler, max_waiting=max_waiting)
        self._group = group
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="prefill")
        self._coming: dict[int, futures.Future[list[Tensor]]] = {}
        self._nothing = cache.swap_out(-1)  # without a sequence: has the shapes to receive

    def add(self, request: Request) -> int:
        """Like Engine. The request waits until its keys and values have come."""
        id = super().add(request)
        if tokens := self.waiting[-1].tokens[:-1]:
            self._coming[id] = self._thread.submit(self._ask, tokens)
        return id

    def cancel(self, id: int) -> None:
        """Like Engine. Rank 1 still finishes a prompt that it has started."""
        super().cancel(id)
        if (coming := self._coming.pop(id, None)) is not None:
            coming.cancel()

    def step(self) -> list[Output]:
        """Like Engine. If no request can go on, wait for the next keys and values.

        RuntimeError: rank 1 is gone.
        """
        if self.has_work and not self.running and not self._have_come():
            futures.wait(self._coming.values(), return_when=futures.FIRST_COMPLETED)
        return super().step()

    def close(self) -> None:
        """Close both ranks' engines. Prompts that rank 1 has not started are dropped."""
        self._thread.shutdown(cancel_futures=True)
        self._group.send(torch.tensor([0], device=self._group.device), 1)

    def _have_come(self) -> list[Generation]:
        """Return the waiting requests that can be admitted."""
        return [each for each in self.waiting if self._is_here(each.id)]

    def _is_here(self, id: int) -> bool:
        return id not in self._coming or self._coming[id].done()

    def _plan(self) -> Plan:
        return self.scheduler(State(self._have_come(), self.running, self.cache))

    def _fill(self, generation: Generation) -> None:
        coming = self._coming.pop(generation.id, None)
        if coming is None:
            super()._fill(generation)
        else:
            self.cache.swap_in(
                generation.id, generation.tokens[:-1], generation.longest, coming.result()
            )

    def _ask(self, tokens: Sequence[int]) -> list[Tensor]:
        """Return the keys and values of these tokens from rank 1. Runs on the thread."""
        device = self._group.device
        self._group.send(torch.tensor([len(tokens)], device=device), 1)
        self._group.send(torch.tensor(tokens, device=device), 1)
        return [
            self._group.recv(
                each_L0XX.new_empty(len(each_L0XX), len(tokens), *each_L0XX.shape[2:]), 1
            )
            for each_L0XX in self._nothing
        ]


@torch.no_grad()
def prefill(decoder: Decoder, cache: KVCache, group: Group) -> None:
    """Send keys and values of prompts from rank 1 to rank 0, until rank 0 closes.

    cache: for as many tokens as rank 0's. It keeps pages for prompts that begin alike.
    RuntimeError: rank 0 is gone.
    """
    for sequence in itertools.count():
        num_tokens = int(group.recv(torch.empty(1, dtype=torch.int64, device=group.device), 0))
        if num_tokens == 0:
            return
        buffer = torch.empty(num_tokens, dtype=torch.int64, device=group.device)
        tokens = group.recv(buffer, 0).tolist()
        num_shared = cache.share_prefix(
            sequence, [*tokens, -1]
        )  # -1 stands for the last token, which rank 0 computes
        if not cache.reserve(sequence, num_tokens, num_tokens):
            raise RuntimeError(
                f"rank 1 has {cache.num_free_pages} free pages, too few for {num_tokens} tokens; "
                "give its cache as many pages as that of rank 0"
            )
        if num_shared < num_tokens:
            decoder([ScheduledTokens(sequence, tokens[num_shared:], num_shared)], cache)
        for copy_LnXX in cache.swap_out(sequence):
            group.send(copy_LnXX, 0)
        cache.free(sequence)
