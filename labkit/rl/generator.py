"""A rank that generates: the serving engine, weights of a version, and answers with a record.

    turn    report: version, finished answers, room  ->  reply: update? new prompts? stop?
    update  receive a version's weights | install them | drop the cache | count the new version
    passes  a few passes of the engine; each new token is recorded with log-probability and version

Keys and values of old weights are wrong for new ones, also those of shared prefixes. So an update
drops the whole cache. Answers that were running keep their tokens. The next pass computes keys and
values of all their tokens again, with the new weights, and goes on: partial rollouts. Their tokens
then have several versions, and each has the log-probability of the version that sampled it.

The ranks of one engine share its model (batch_invariant.py). The first speaks with the queue on
rank 0 (answer_queue.py) and passes the reply on, so all make the same passes.

Wire of a turn: a message of plain data each way, a broadcast of the reply between the engine's
ranks, and in an update the weights (weight_sync.py).
Paper: Fu et al., AReaL, arXiv:2505.24298 (interruptible generation, versions by token).
"""

from __future__ import annotations

import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.comm import Group
from labkit.rl.completion import Completion, broadcast_plain, receive_plain, send_plain
from labkit.rl.figures import NO_WEIGHTS
from labkit.rl.invariant_gpt import InvariantDecoder, InvariantGPT, token_log_probs
from labkit.rl.settings import Settings
from labkit.rl.weight_sync import WeightSync, install
from labkit.serving.caches import NoCache, PagedCache
from labkit.serving.decoder import Decoder
from labkit.serving.requests import Generation, Request, Sampling, ScheduledTokens
from labkit.serving.scheduler import preempting
from labkit.serving.serving_engine import Engine, Output
from labkit.shards import named_shards

_PASSES = 2  # the most in a turn
_PAGE = 4


class RolloutEngine(Engine):
    """An Engine that records each token, and whose cache can be dropped between two passes."""

    version = NO_WEIGHTS

    def __init__(self, owner: Generator, settings: Settings) -> None:
        config = settings.config
        self._owner = owner
        num_pages = settings.max_running * -(-config.context // _PAGE)
        self._make_cache = partial(PagedCache, owner.decoder.cache_config, num_pages, _PAGE)
        scheduler = partial(preempting, max_running=settings.max_running)
        # The others stay in the queue, where any engine can take them.
        super().__init__(
            owner.decoder, self._make_cache(), scheduler, max_waiting=settings.max_running
        )
        self.records: defaultdict[int, list[tuple[int, float, int]]] = defaultdict(list)

    def drop_cache(self) -> None:
        """Forget all keys and values. What was running goes on in the next pass, recomputed."""
        for generation in self.running[::-1]:
            self._preempt(generation)
        self.cache = self._make_cache()

    def _next(self, generation: Generation, logits_V: Tensor) -> list[Output]:
        outputs = super()._next(generation, logits_V)
        if (token := outputs[-1].token) is not None:
            record = token, self._owner.log_prob(logits_V, token), self.version
            self.records[generation.id].append(record)
        return outputs


class Generator:
    """One rank of an engine. A fault is a subclass that replaces one method."""

    def __init__(
        self, settings: Settings, number: int, group: Group, control: Group, weights: Group
    ) -> None:
        """number: of the engine. group: its ranks. control, weights: groups of all ranks."""
        self.settings, self.task, self.number = settings, settings.task, number
        self.group, self.control = group, control
        self.decoder = self.make_decoder()
        self.model = self.decoder.model
        self.engine = RolloutEngine(self, settings)
        self.sync = WeightSync(weights, [], list(named_shards(self.model)))
        self.asked: dict[int, tuple[int, int, list[int]]] = {}  # by id in the engine
        self.completed: list[Completion] = []
        self.served_norm = 0.0
        self.probe, self.probed_version = list[float](), NO_WEIGHTS

    def make_decoder(self) -> Decoder:
        """Return the decoder of this rank's share of the model, with any weights."""
        experts = self.settings.num_experts
        model = InvariantGPT(self.settings.config, num_experts=experts, group=self.group)
        return InvariantDecoder(model)

    def serve(self) -> None:
        """Make turns until the queue says stop. RuntimeError: a rank is gone."""
        while not (reply := self._exchange()).get("stop"):
            self.turn(**reply)

    def turn(
        self,
        update: int | None = None,
        start: Sequence[tuple[int, int]] = (),
        is_sleep: bool = False,
    ) -> None:
        """Install an update, add answers by group and member, and make a few passes."""
        if is_sleep:
            self.sleep()
        if update is not None:
            self.update(update)
        for group, member in start:
            self.add(group, member)
        for _ in range(_PASSES):
            if not self.engine.has_work or self.engine.version == NO_WEIGHTS:
                break
            for output in self.engine.step():
                output.required_token()
                if output.finish_reason:
                    self._complete(output.id)
            time.sleep(self.task.slow_s.get(self.number, 0.0))

    def update(self, version: int) -> None:
        """Receive a version's weights; when all have arrived, compute with them from now on."""
        self.install(self.sync.receive())
        self.engine.drop_cache()
        self.engine.version = version
        self.measure()

    def measure(self) -> None:
        """Look at the weights that the engine computes with, after each change of them."""
        self.probe, self.probed_version = self.probed(), self.engine.version
        self.served_norm = self.norm()

    def norm(self) -> float:
        """Return the L2 norm of the whole model's weights. Wire: a sum over the engine's ranks."""
        squares = [0.0, 0.0]
        for shard in self.sync.targets:
            is_cut = shard.extent.box_shape != shard.extent.shape
            squares[is_cut] += float(shard.tensor.detach().square().sum())
        of_all = self.group.all_reduce(torch.tensor(squares[True], dtype=torch.float64))
        return float(squares[False] + of_all) ** 0.5

    def install(self, row_N: Tensor) -> None:
        """Copy the numbers of all weights into the model, (N,)."""
        install(self.sync.targets, row_N)

    def sleep(self) -> None:
        """Give back the memory of weights and cache. All weights are needed again afterwards."""
        self.engine.drop_cache()
        with torch.no_grad():
            for shard in self.sync.targets:
                shard.tensor.zero_()
        self.engine.version = NO_WEIGHTS
        self.measure()

    def add(self, group: int, member: int) -> None:
        """Add a request to the engine. QueueFull: it has no room for one."""
        prompt = self.task.prompt(group)
        self.asked[self.engine.add(self.request(group, member))] = group, member, prompt

    def request(self, group: int, member: int) -> Request:
        """Return the request for an answer, with a seed of its own."""
        seed = zlib.crc32(f"{self.settings.seed}/{group}/{member}".encode())
        sampling = Sampling(temperature=1.0, seed=seed)
        most = self.settings.max_new_tokens
        return Request(self.task.prompt(group), most, sampling, self.task.stop)

    def log_prob(self, logits_V: Tensor, token: int) -> float:
        """Return the log-probability of a sampled token, of the distribution it was drawn from."""
        return float(token_log_probs(logits_V, torch.tensor(token)))

    def probed(self) -> list[float]:
        """Return log-probabilities of the probe's tokens, of fixed answers to fixed prompts."""
        entries = [
            ScheduledTokens(number, [*prompt, *answer[:-1]], 0, len(answer))
            for number, (prompt, answer) in enumerate(self.settings.probe)
        ]
        logits_nV = self.decoder(entries, NoCache(self.decoder.cache_config))
        tokens = [token for _, answer in self.settings.probe for token in answer]
        return [self.log_prob(logits_V, token) for logits_V, token in zip(logits_nV, tokens)]

    def _complete(self, id: int) -> None:
        group, member, prompt = self.asked.pop(id)
        tokens, log_probs, versions = map(list, zip(*self.engine.records.pop(id)))
        reward = self.task.reward(prompt, tokens)
        self.completed.append(
            Completion(group, member, prompt, tokens, log_probs, versions, reward)
        )

    def _exchange(self) -> dict[str, Any]:
        """Report to the queue; return its reply, on all ranks of the engine."""
        reply: dict[str, Any] = {}
        if self.group.rank == 0:
            report = {
                "version": self.engine.version,
                "completed": [asdict(each) for each in self.completed],
                "unfinished": len(self.asked),
                "probe": self.probe,
                "probed": self.probed_version,
                "served_norm": self.served_norm,
            }
            send_plain(report, self.control, 0)
            reply = receive_plain(self.control, 0)
        reply = broadcast_plain(reply, self.group)
        self.completed = []
        return reply
