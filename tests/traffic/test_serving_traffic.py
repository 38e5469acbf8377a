"""Messages and bytes of a pass on several ranks, by the journal: as the docstrings say."""

from collections import Counter

import pytest

from labkit import run
from labkit.combined import within
from labkit.model import GPT, GPTConfig
from labkit.pipeline import PipelineGPT, gpipe, plan
from labkit.serving import (
    Decoder,
    DisaggregatedEngine,
    Engine,
    Leader,
    PagedCache,
    PipelineDecoder,
    Request,
    ScheduledTokens,
    TensorParallelDecoder,
    continuous,
    follow,
    prefill,
)
from labkit.tensor_parallel import SHARED_MEMORY, parallelize

CONFIG = GPTConfig(vocab=19, num_layers=3, hidden=12, num_heads=12)
D, V, L, ITEM = 12, 19, 3, 4
PASSES = {  # by name: the tokens of its entries
    "prompts": [[1, 2, 3, 4], [5], [6, 7]],
    "tokens": [[8], [9], [10]],
}


def tensor_parallel(world):
    return TensorParallelDecoder(parallelize(GPT(CONFIG), world))


def pipeline(world):
    schedule = plan(gpipe, num_ranks=world.size, num_microbatches=1)
    return PipelineDecoder(PipelineGPT(CONFIG, schedule, world.rank), world)


def passes(world, make):
    decoder = make(world)
    cache = PagedCache(decoder.cache_config, 8, 4)
    for name, tokens in PASSES.items():
        batch = []
        for sequence, own in enumerate(tokens):
            start = cache.num_cached(sequence)
            assert cache.reserve(sequence, start + len(own), 8)
            batch.append(ScheduledTokens(sequence, own, start))
        with world.region(name):
            decoder(batch, cache)


def kinds(operations):
    return Counter(op.kind for op in operations)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_tensor_parallelism_adds_up_twice_per_block_and_once_for_the_embedding(size):
    for timeline in run(passes, size, (tensor_parallel,)).timeline:
        for name, tokens in PASSES.items():
            n, S = sum(map(len, tokens)), len(tokens)
            operations = within(timeline, name)
            assert kinds(operations) == {"all_reduce": 2 * L + 1, "all_gather": 1}
            *sums, gather = operations
            assert {op.payload_bytes for op in sums} == {n * D * ITEM}
            assert sum(op.sent_bytes for op in sums) == pytest.approx(
                (2 * L + 1) * 2 * (size - 1) / size * n * D * ITEM, abs=2 * L + 1
            )
            assert gather.sent_bytes == (size - 1) * -(-V // size) * S * ITEM


def on_shared_memory(world):
    return TensorParallelDecoder(parallelize(GPT(CONFIG), world, backend=SHARED_MEMORY))


def test_sums_go_over_the_wire_that_the_model_was_cut_for():
    for timeline in run(passes, 2, (on_shared_memory,)).timeline:
        operations = within(timeline, "tokens")
        assert [op.medium for op in operations].count("shared memory") == 2 * L + 1
        assert {op.kind for op in operations if op.sent_bytes} == {"all_gather"}


# By number of ranks: microbatches of each pass. 4, 1 and 2 tokens for 4 ranks are 4 | 1 2.
NUM_PARTS = {
    2: {"prompts": 2, "tokens": 2},
    3: {"prompts": 3, "tokens": 3},
    4: {"prompts": 2, "tokens": 3},
}


@pytest.mark.parametrize("size", NUM_PARTS)
def test_a_pipeline_sends_each_token_once_over_each_boundary(size):
    for rank, timeline in enumerate(run(passes, size, (pipeline,)).timeline):
        for name, tokens in PASSES.items():
            n, S = sum(map(len, tokens)), len(tokens)
            num_parts = NUM_PARTS[size][name]
            operations = within(timeline, name)
            expected = {"broadcast": 1}
            if rank > 0:
                expected["recv"] = num_parts
            if rank < size - 1:
                expected["send"] = num_parts
            assert kinds(operations) == expected
            sent = sum(op.sent_bytes for op in operations if op.kind == "send")
            assert sent == (n * D * ITEM if rank < size - 1 else 0)
            (broadcast,) = (op for op in operations if op.kind == "broadcast")
            assert broadcast.payload_bytes == S * V * ITEM


def led(world):
    decoder = tensor_parallel(world)
    engine = Engine(decoder, PagedCache(decoder.cache_config, 8, 4), continuous)
    if world.rank:
        return follow(engine, world)
    with Leader(engine, world) as leader:
        leader.generate([Request([1, 2, 3], 4), Request([4], 4)])
    return None


def test_a_step_without_new_requests_sends_eight_bytes_more_than_its_pass():
    for timeline in run(led, 2).timeline:
        of_passes = kinds(op for op in timeline.operations if op.label == "pass")
        assert of_passes == {"all_reduce": 4 * (2 * L + 1), "all_gather": 4}
        requests = [op for op in timeline.operations if op.label == "requests"]
        assert kinds(requests) == {"broadcast": 4 + 1 + 2}  # 4 steps, one of them new, and the end
        assert [op.payload_bytes for op in requests[2:5]] == [8, 8, 8]


def apart(world):
    decoder, cache = Decoder(GPT(CONFIG)), PagedCache(CONFIG, 8, 4)
    messages = world.split(0)
    if world.rank:
        world.barrier()  # rank 0 has added its requests, and cancelled one
        return prefill(decoder, cache, messages)
    with DisaggregatedEngine(decoder, cache, continuous, messages) as engine:
        engine.add(Request([1, 2, 3], 4))
        engine.cancel(engine.add(Request([7, 8, 9], 4)))
        world.barrier()
        engine.generate([Request([4], 4), Request([5, 6], 4)])
    return None


def test_keys_and_values_of_each_prompt_are_sent_once_without_the_last_token():
    sent = [
        [op.sent_bytes for op in timeline.operations if op.kind == "send"]
        for timeline in run(apart, 2).timeline
    ]
    assert sent[0] == [8, 8 * 2, 8, 8 * 1, 8]
    assert sent[1] == [L * D * num_tokens * ITEM for num_tokens in (2, 2, 1, 1)]
