"""Engines on several ranks against naive generation on one: the same tokens, in float64.

Naive: one request at a time, all of its tokens in every forward of the whole model. Rank 0 leads
random traffic with cancellations and preemption; the others follow.
"""

import os
import signal
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch

from labkit import run
from labkit.combined import CombinedGPT
from labkit.launch import RankError, supervise
from labkit.mesh import Mesh
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
    Sampling,
    ScheduledTokens,
    SpeculativeEngine,
    SwappingEngine,
    TensorParallelDecoder,
    agreed_num_pages,
    chunked_prefill,
    follow,
    preempting,
    prefill,
)
from labkit.serving.requests import sample
from labkit.tensor_parallel import parallelize

# Neither the vocabulary nor the MLP's features divide by 2, 3 or 4.
GROUPED = GPTConfig(
    vocab=19, context=40, num_layers=3, hidden=16, num_heads=4, num_kv_heads=2, ffn=25
)
THREE_HEADS = replace(GROUPED, hidden=18, num_heads=3, num_kv_heads=3)
NUM_PAGES, PAGE_SIZE = 11, 3


def enlarged(model):
    """With larger weights than at the start of training, when each token would predict itself."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(20 if weight.dim() == 2 and ("blocks" in name or "position" in name) else 1)
    return model


def tensor_parallel(world, config, dtype):
    return TensorParallelDecoder(parallelize(enlarged(GPT(config, dtype=dtype)), world))


def schedule_of(num_ranks):
    return plan(gpipe, num_ranks=num_ranks, num_microbatches=1)


def pipeline(world, config, dtype):
    model = PipelineGPT(config, schedule_of(world.size), world.rank, dtype=dtype)
    return PipelineDecoder(enlarged(model), world)


def both(world, config, dtype):
    mesh = Mesh(world, pp=2, tp=world.size // 2)
    model = CombinedGPT(config, schedule_of(2), mesh, dtype=dtype)
    return PipelineDecoder(enlarged(model), mesh.pp, TensorParallelDecoder)


LAYOUTS = {
    "tp 1": (1, tensor_parallel, GROUPED),
    "tp 2": (2, tensor_parallel, replace(GROUPED, rotary=True)),
    "tp 3": (3, tensor_parallel, THREE_HEADS),
    "tp 4, copied heads": (4, tensor_parallel, GROUPED),
    "pp 1": (1, pipeline, GROUPED),
    "pp 2": (2, pipeline, GROUPED),
    "pp 3": (3, pipeline, replace(THREE_HEADS, rotary=True)),
    "pp 4": (4, pipeline, GROUPED),
    "pp 2, tp 2": (4, both, replace(GROUPED, rotary=True)),
}
SCHEDULERS = [preempting, partial(chunked_prefill, token_budget=9)]


def request_of(random):
    """Some begin alike, so that pages are shared; together they need more pages than there are."""
    own = [random.randrange(19) for _ in range(random.randint(1, 8))]
    sampling = Sampling(random.choice([0.0, 0.7]), seed=random.randrange(99))
    stop = random.choice([frozenset(), frozenset({3, 4})])
    return Request([*range(random.choice([0, 7])), *own], random.choice([1, 5, 12]), sampling, stop)


def lead(leader, seed):
    """[request, answer, whether it was cancelled] of each, and how many were preempted."""
    random, served, num_preempted = Random(seed), [], 0
    num_coming = 7
    while num_coming or leader.has_work:
        if num_coming and random.random() < 0.7:
            request = request_of(random)
            assert leader.add(request) == len(served)
            served.append([request, [], False])
            num_coming -= 1
        running = set(leader.running)
        for output in leader.step():
            served[output.id][1].append(output.token)
        num_preempted += len(running & set(leader.waiting))
        if random.random() < 0.05:
            id = random.randrange(len(served) or 1)
            leader.cancel(id)
            for each in served[id : id + 1]:
                each[2] = True
    return served, num_preempted


def traffic(world, make, config, dtype, seeds, make_engine=Engine):
    """Rank 0: what `lead` returned, by seed."""
    decoder, found = make(world, config, dtype), []
    for seed in seeds:
        cache = PagedCache(decoder.cache_config, NUM_PAGES, PAGE_SIZE, dtype)
        engine = make_engine(decoder, cache, SCHEDULERS[seed % 2])
        if world.rank:
            follow(engine, world)
        else:
            with Leader(engine, world) as leader:
                found.append(lead(leader, seed))
        assert cache.num_free_pages == NUM_PAGES
        assert not engine.has_work
    return found


@torch.no_grad()
def naive(model, request):
    tokens, generator = list(request.prompt), torch.Generator().manual_seed(request.sampling.seed)
    for _ in range(request.max_new_tokens):
        tokens.append(sample(model(torch.tensor([tokens]))[0, -1], request.sampling, generator))
        if tokens[-1] in request.stop:
            break
    return tokens[len(request.prompt) :]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tokens_on_ranks_are_those_of_naive_generation(layout):
    world_size, make, config = LAYOUTS[layout]
    result = run(traffic, world_size, (make, config, torch.float64, range(3)))
    model, total_preempted, num_cancelled = enlarged(GPT(config, dtype=torch.float64)), 0, 0
    for served, num_preempted in result.values[0]:
        for request, answer, is_cancelled in served:
            expected = naive(model, request)
            assert answer == (expected[: len(answer)] if is_cancelled else expected)
            num_cancelled += is_cancelled
        total_preempted += num_preempted
    assert total_preempted and num_cancelled


def speculative(decoder, cache, scheduler):
    draft = Decoder(GPT(replace(GROUPED, num_layers=1, rotary=True), dtype=torch.float64))
    draft_cache = PagedCache(draft.cache_config, NUM_PAGES, PAGE_SIZE, torch.float64)
    return SpeculativeEngine(decoder, cache, scheduler, draft=draft, draft_cache=draft_cache)


OTHER_ENGINES = [partial(SwappingEngine, max_host_bytes=4000), speculative]


@pytest.mark.parametrize("make_engine", OTHER_ENGINES, ids=["swapping", "speculative"])
def test_other_engines_are_led_alike(make_engine):
    config = LAYOUTS["tp 2"][2]
    args = tensor_parallel, config, torch.float64, range(2), make_engine
    model = enlarged(GPT(config, dtype=torch.float64))
    for served, _ in run(traffic, 2, args).values[0]:
        for request, answer, is_cancelled in served:
            # Other draws from the same distribution: greedy answers are equal.
            if make_engine is not speculative or request.sampling.temperature == 0:
                expected = naive(model, request)
                assert answer == (expected[: len(answer)] if is_cancelled else expected)


def some_passes(world, make, config, dtype):
    """Logits of each pass, of several tokens in the last one; and the shape of this rank's keys."""
    decoder = make(world, config, dtype)
    cache = PagedCache(decoder.cache_config, NUM_PAGES, PAGE_SIZE, dtype)
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8, 9], [10, 11]]
    for sequence, prompt in enumerate(prompts):
        assert cache.reserve(sequence, len(prompt) + 2, 40)
    passes = [
        [ScheduledTokens(0, prompts[0][:3], 0), ScheduledTokens(1, prompts[1], 0)],
        [
            ScheduledTokens(0, prompts[0][3:], 3),
            ScheduledTokens(2, prompts[2], 0),
            ScheduledTokens(3, prompts[3], 0),
        ],
        [
            ScheduledTokens(2, [12], 3),
            ScheduledTokens(1, [13], 1),
            ScheduledTokens(0, [14], 5),
            ScheduledTokens(3, [15], 2),
        ],
    ]
    found = [decoder(batch, cache) for batch in passes]
    last = [ScheduledTokens(3, [16], 3), ScheduledTokens(0, [17, 18, 0], 6, num_logits=2)]
    assert cache.reserve(0, 9, 40)
    return [*found, decoder(last, cache)], tuple(cache.keys_LNGK.shape)


def one_rank(world, config, dtype):
    return Decoder(enlarged(GPT(config, dtype=dtype)))


SHAPES = {  # shapes of keys_LNGK, by rank
    "tp 2": [(3, 33, 1, 4)] * 2,
    "tp 3": [(3, 33, 1, 6)] * 3,
    "tp 4, copied heads": [(3, 33, 1, 4)] * 4,
    "pp 2": [(2, 33, 2, 4), (1, 33, 2, 4)],
    "pp 4": [(1, 33, 2, 4)] * 4,
    "pp 2, tp 2": [(2, 33, 1, 4)] * 2 + [(1, 33, 1, 4)] * 2,
}


@pytest.mark.parametrize("layout", SHAPES)
def test_all_ranks_have_the_same_bits_and_a_cache_of_their_share(layout):
    world_size, make, config = LAYOUTS[layout]
    result = run(some_passes, world_size, (make, config, torch.float32))
    expected, _ = some_passes(None, one_rank, config, torch.float32)
    assert [shape for _, shape in result.values] == SHAPES[layout]
    for logits, _ in result.values:
        for mine, first, on_one in zip(logits, result.values[0][0], expected, strict=True):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine, on_one)


@pytest.mark.parametrize("layout", ["tp 2", "pp 2"])
@torch.no_grad()
def test_in_float32_greedy_tokens_are_within_a_margin_of_the_largest_logit(layout):
    world_size, make, config = LAYOUTS[layout]
    result = run(traffic, world_size, (make, config, torch.float32, range(2)))
    model = enlarged(GPT(config))
    for request, answer, _ in (each for served, _ in result.values[0] for each in served):
        if request.sampling.temperature == 0:
            logits_TV = model(torch.tensor([[*request.prompt, *answer]]))[0]
            for row_V, token in zip(logits_TV[len(request.prompt) - 1 :], answer):
                assert row_V.max() - row_V[token] < 1e-5


def pages_that_fit(world, config):
    decoder = tensor_parallel(world, config, torch.float32)
    bytes_of_page = 4 * 2 * 3 * PAGE_SIZE * (4 if world.size > 1 else 8)
    return agreed_num_pages(
        decoder.cache_config, (9 - world.rank) * bytes_of_page + 5, world, PAGE_SIZE
    )


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_rank_with_the_least_memory_says_how_many_pages_there_are(world_size):
    assert run(pages_that_fit, world_size, (GROUPED,)).values == [10 - world_size] * world_size


def step_that_fails(world, layout, failure, folder):
    """Rank 1 fails in its 4th pass. A file for each other rank that raised."""
    _, make, config = LAYOUTS[layout]
    decoder, num_passes = make(world, config, torch.float64), 0

    def fails(batch, cache):
        nonlocal num_passes
        num_passes += 1
        if world.rank == 1 and num_passes == 4:
            if failure == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise MemoryError
        return decoder(batch, cache)

    fails.model = decoder.model
    cache = PagedCache(decoder.cache_config, NUM_PAGES, PAGE_SIZE, torch.float64)
    engine = Engine(fails, cache, preempting)
    if world.rank:
        try:
            follow(engine, world)
        except RuntimeError as error:
            (folder / str(world.rank)).write_text(repr(error))
            raise
        return
    leader = Leader(engine, world)
    leader.add(Request([1, 2, 3], 9))
    with pytest.raises(RuntimeError) as caught:
        while leader.has_work:
            leader.step()
    with pytest.raises(RuntimeError, match="a step has failed"):
        leader.step()
    leader.close()  # sends nothing to ranks that no longer follow
    (folder / "0").write_text(repr(caught.value))
    raise caught.value


@pytest.mark.parametrize("failure", ["killed", "raises"])
@pytest.mark.parametrize("layout", ["tp 3", "pp 3"])
def test_a_rank_that_fails_ends_the_step_on_all_ranks(layout, failure, tmp_path, monkeypatch):
    if failure == "killed":  # rank 2 hears of it later than the driver, on a busy machine
        monkeypatch.setattr(supervise, "_GRACE_S", 60)
    with pytest.raises(RankError) as caught:
        run(step_that_fails, 3, (layout, failure, tmp_path))
    assert caught.value.rank == 1
    assert sorted(caught.value.consequences) == [0, 2]
    if failure == "killed":
        assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "2"]


def refused_and_closed(world):
    decoder = tensor_parallel(world, GROUPED, torch.float64)
    cache = PagedCache(decoder.cache_config, NUM_PAGES, PAGE_SIZE, torch.float64)
    engine = Engine(decoder, cache, preempting)
    if world.rank:
        follow(engine, world)
        return engine.has_work
    with Leader(engine, world) as leader:
        with pytest.raises(ValueError, match="more than the 33 slots"):
            leader.add(Request([1] * 30, 9))
        assert leader.step() == []  # the others are there
        (answer,) = leader.generate([Request([1, 2], 3)])
        leader.add(Request([1, 2], 3))
        leader.step()
    leader.close()
    with pytest.raises(RuntimeError, match="closed"):
        leader.step()
    return answer


def test_a_refused_request_reaches_no_other_rank_and_close_releases_them():
    answer, other_has_work = run(refused_and_closed, 2).values
    assert answer == naive(enlarged(GPT(GROUPED, dtype=torch.float64)), Request([1, 2], 3))
    assert other_has_work


def apart(world, config, dtype, seeds, num_pages):
    """Rank 0: what `lead` returned, by seed, and the tokens of each entry of its passes."""
    decoder = Decoder(enlarged(GPT(config, dtype=dtype)))
    lengths = []

    def counted(batch, cache):
        lengths.extend(len(entry.tokens) for entry in batch)
        return decoder(batch, cache)

    counted.model = decoder.model
    found = []
    for seed in seeds:
        cache = PagedCache(config, num_pages, PAGE_SIZE, dtype)
        if world.rank:
            prefill(decoder, cache, world)
        else:
            with DisaggregatedEngine(counted, cache, SCHEDULERS[seed % 2], world) as engine:
                found.append(lead(engine, seed))
                request = Request([1, 2, 3], 6)
                [answer] = engine.generate([request])
                moved = replace(request, prior_output=answer[:2])
                found[-1][0].append([request, answer[:2] + engine.generate([moved])[0], False])
        assert cache.num_free_pages == num_pages
    return found, lengths


@pytest.mark.parametrize("num_pages", [NUM_PAGES, 60])
def test_tokens_of_prefill_and_decode_apart_are_those_of_naive_generation(num_pages):
    config = replace(GROUPED, rotary=True)
    result = run(apart, 2, (config, torch.float64, range(3), num_pages))
    found, lengths = result.values[0]
    model = enlarged(GPT(config, dtype=torch.float64))
    for request, answer, is_cancelled in (each for served, _ in found for each in served):
        expected = naive(model, request)
        assert answer == (expected[: len(answer)] if is_cancelled else expected)
    if num_pages == 60:  # nothing is preempted, and computed again
        assert set(lengths) == {1}


def prompt_that_fails(world, failure):
    decoder = Decoder(GPT(GROUPED))
    cache = PagedCache(GROUPED, 2 if world.rank else NUM_PAGES, PAGE_SIZE)
    if world.rank:
        if failure == "killed":
            world.recv(torch.empty(1, dtype=torch.int64), 0)
            os.kill(os.getpid(), signal.SIGKILL)
        prefill(decoder, cache, world)
    with DisaggregatedEngine(decoder, cache, preempting, world) as engine:
        engine.generate([Request([1], 2), Request([1] * 9, 2)])


@pytest.mark.parametrize(("failure", "message"), [("killed", "died"), ("few pages", "too few for")])
def test_a_rank_of_prompts_that_fails_ends_the_step(failure, message):
    with pytest.raises(RankError, match=message) as caught:
        run(prompt_that_fails, 2, (failure,))
    assert caught.value.rank == 1
    assert sorted(caught.value.consequences) == [0]
