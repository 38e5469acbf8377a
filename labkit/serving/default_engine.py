"""The engine of `labkit serve`: in this process, or in replicas of one rank or several each.

    num_replicas=2, tp=2         replica 0    rank 0  rank 1      half of the heads each
    this process -> Router ->    replica 1    rank 0  rank 1      the same model

Tensor parallelism makes one request faster, replicas serve more of them, and a replica that fails
restarts alone while the other one goes on with its requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from labkit.comm import Group
from labkit.model import GPT
from labkit.serving.decoder import Decoder, store_head_by_inputs
from labkit.serving.pages import PagedCache
from labkit.serving.parallel_decoders import TensorParallelDecoder
from labkit.serving.replicas import Replicas
from labkit.serving.request_router import Router, by_prefix
from labkit.serving.scheduler import Chunk, Plan, State, preempting
from labkit.serving.serving_engine import Engine, EngineClient
from labkit.tensor_parallel import HeadShares, parallelize

MAX_RUNNING, MAX_WAITING = 32, 64


def engine_of(model: GPT, max_waiting: int | None = MAX_WAITING) -> Engine:
    """In this process: pages for 32 of the model's longest sequences, and chunked prefill."""
    return _engine(Decoder(model), model, max_waiting)


@contextmanager
def engine_for(model: GPT, num_replicas: int, tp: int) -> Iterator[EngineClient]:
    """In num_replicas * tp processes, until the `with` block ends; for one, in this process.

    tp: the ranks of one replica, tensor parallel. Each rank gets a copy of the model and cuts it.
    ValueError: so many ranks cannot share the heads evenly.
    """
    HeadShares(model.config.num_heads, model.config.kv_heads, tp)  # before any process starts
    if num_replicas * tp == 1:
        yield engine_of(store_head_by_inputs(model))
        return
    with Replicas(_on_rank, num_replicas, (model,), num_ranks=tp) as replicas:
        limit = num_replicas * (MAX_RUNNING + MAX_WAITING)
        yield Router(replicas, by_prefix, max_unfinished=limit)


def _on_rank(world: Group, model: GPT) -> Engine:
    is_alone = world.size == 1
    decoder = Decoder(model) if is_alone else TensorParallelDecoder(parallelize(model, world))
    return _engine(decoder, model)  # the router has the bound


def _engine(decoder: Decoder, model: GPT, max_waiting: int | None = None) -> Engine:
    num_pages = MAX_RUNNING * -(-model.config.context // 16)
    weight = next(model.parameters())
    try:
        cache = PagedCache(
            decoder.cache_config, num_pages, dtype=weight.dtype, device=str(weight.device)
        )
    except RuntimeError as error:  # of the allocator
        raise ValueError(
            f"there is no memory for {MAX_RUNNING} sequences of context={model.config.context}, "
            f"{num_pages} pages: {str(error):.100}"
        ) from None
    scheduler = partial(short_prompts_too, max_running=MAX_RUNNING, token_budget=128)
    return Engine(decoder, cache, scheduler, max_waiting=max_waiting)


def short_prompts_too(state: State, *, max_running: int, token_budget: int) -> Plan:
    """As chunked_prefill, but a short prompt does not wait behind long ones of another client.

    Single tokens come first. Of the rest of the budget the oldest prompt gets half, so that it
    comes to its end. The others get what is left, the shortest first.
    """
    plan = preempting(state, max_running=max_running)
    running = set(map(id, state.running))
    is_single = [each.num_tokens == 1 and id(each.generation) in running for each in plan.chunks]
    singles = [each for each, single in zip(plan.chunks, is_single, strict=True) if single]
    prompts = [each for each, single in zip(plan.chunks, is_single, strict=True) if not single]
    left = max(0, token_budget - len(singles))
    # The oldest comes last here: it gets its half, and what the others leave.
    half = min(prompts[0].num_tokens, -(-left // 2)) if prompts else 0
    given: dict[int, Chunk] = {}
    for chunk in [*sorted(prompts[1:], key=lambda each: each.num_tokens), *prompts[:1]]:
        num_tokens = min(chunk.num_tokens, left if chunk is prompts[0] else left - half)
        left -= num_tokens
        given[id(chunk)] = chunk._replace(num_tokens=num_tokens)
    chunks = [given[id(each)] for each in prompts if given[id(each)].num_tokens]
    return Plan([*singles[:token_budget], *chunks], plan.preempt)
