"""Every cache against naive generation, in float64: the same tokens, and the same logits.

Naive: one sequence at a time, all of its tokens in every forward of the model itself. The traffic
mixes whole prompts, chunks and single tokens in a pass, of sequences that come and go.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest
import torch

from labkit.model import GPT, GPTConfig, attend, rotate, split_heads
from labkit.serving import (
    ContiguousCache,
    Decoder,
    Int8PagedCache,
    NoCache,
    PagedCache,
    ScheduledTokens,
)
from labkit.serving.decoder import store_head_by_inputs
from labkit.serving.quantized import from_codes, to_codes

LEARNED = GPTConfig(vocab=19, context=40, hidden=16, num_heads=4, num_kv_heads=2)
ROTARY = replace(LEARNED, rotary=True)
RUNGS = {
    "none": NoCache,
    "contiguous": lambda config: ContiguousCache(config, 130, torch.float64),
    "pages of 1": lambda config: PagedCache(config, 60, 1, torch.float64),
    "pages of 3": lambda config: PagedCache(config, 20, 3, torch.float64),
    "pages of 16": lambda config: PagedCache(config, 5, 16, torch.float64),
}


def model_of(config):
    """With larger weights than at the start of training, when each token would predict itself."""
    model = GPT(config, dtype=torch.float64)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(20 if weight.dim() == 2 and "token" not in name else 1)
    return model


def attend_rounded(q_BTD, k_BTD, v_BTD, head_dim, rotary):
    """Attention to keys and values of 8 bits, with a scale per token and head."""
    heads = [split_heads(x_BTD, head_dim) for x_BTD in (q_BTD, k_BTD, v_BTD)]
    if rotary:
        heads[:2] = (rotate(x_BHTK, torch.arange(x_BHTK.shape[2])) for x_BHTK in heads[:2])
    heads[1:] = (from_codes(*to_codes(x_BHTK, 8), x_BHTK.dtype) for x_BHTK in heads[1:])
    return attend(*(x_BHTK.transpose(1, 2).flatten(2) for x_BHTK in heads), head_dim)


def rounding(model):
    """The same model, whose attention rounds keys and values as Int8PagedCache does."""
    model = deepcopy(model)
    for block in model.blocks:
        block.attention.attend = attend_rounded
    return model


MODELS = {config: model_of(config) for config in (LEARNED, ROTARY)}
ROUNDING = {config: rounding(model) for config, model in MODELS.items()}


@torch.no_grad()
def naive(model, tokens, num_new):
    """The prompt with its greedy answer, and the logits of each new token."""
    tokens, rows = list(tokens), []
    for _ in range(num_new):
        rows.append(model(torch.tensor([tokens]))[0, -1])
        tokens.append(int(rows[-1].argmax()))
    return tokens, rows


def prompts_of(random, num_requests):
    """Some begin alike, so that pages are shared."""
    beginnings = [[random.randrange(19) for _ in range(17)] for _ in range(2)]
    return [
        random.choice(beginnings)[: random.randrange(18)]
        + [random.randrange(19) for _ in range(random.randint(1, 9))]
        for _ in range(num_requests)
    ]


def serve(model, cache, prompts, num_new, random):
    """Random tokens of random sequences until all have their tokens: (tokens, logits) of each."""
    decoder = Decoder(model)
    tokens, rows = [list(prompt) for prompt in prompts], [[] for _ in prompts]
    waiting, active, counts = list(range(len(prompts))), [], Counter()
    longest = [len(prompt) + num for prompt, num in zip(prompts, num_new, strict=True)]
    while waiting or active:
        if waiting and random.random() < 0.6:
            counts["shared"] += cache.share_prefix(waiting[0], tokens[waiting[0]])
            active.append(waiting.pop(0))
        batch = []
        for i in sorted(active, key=lambda _: random.random()):
            start = cache.num_cached(i)
            rest = len(tokens[i]) - start
            is_whole = isinstance(cache, NoCache) or random.random() < 0.4
            length = rest if is_whole else random.randint(1, rest)
            if cache.reserve(i, start + length, longest[i]):
                batch.append(ScheduledTokens(i, tokens[i][start : start + length], start))
        if active and not batch:
            victim = active.pop()  # preempted: computed again later
            cache.free(victim)
            counts["preempted"] += 1
            waiting.insert(0, victim)
        if not batch:
            continue
        for entry, row in zip(batch, decoder(batch, cache), strict=True):
            i = entry.sequence
            if entry.end == len(tokens[i]):
                rows[i].append(row)
                tokens[i].append(int(row.argmax()))
            if len(tokens[i]) == longest[i]:
                active.remove(i)
                cache.free(i)
    return list(zip(tokens, rows, strict=True)), counts


@pytest.mark.parametrize("config", [LEARNED, ROTARY], ids=["learned", "rotary"])
@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("seed", range(3))
def test_tokens_and_logits_are_those_of_naive_generation(rung, config, seed):
    random = Random(seed)
    prompts = prompts_of(random, 6)
    num_new = [random.randint(1, 12) for _ in prompts]
    cache = RUNGS[rung](config)
    num_free = cache.num_free_pages
    found, _ = serve(MODELS[config], cache, prompts, num_new, random)
    for (tokens, rows), prompt, num in zip(found, prompts, num_new, strict=True):
        expected_tokens, expected_rows = naive(MODELS[config], prompt, num)
        assert tokens == expected_tokens
        torch.testing.assert_close(torch.stack(rows), torch.stack(expected_rows))
    assert cache.num_free_pages == num_free


@pytest.mark.parametrize("config", [LEARNED, ROTARY], ids=["learned", "rotary"])
@pytest.mark.parametrize("seed", range(3))
def test_with_a_cache_of_8_bits_tokens_are_those_of_rounded_keys_and_values(config, seed):
    """So they do not depend on the traffic: a pass reads what it wrote from the cache, too."""
    random = Random(seed)
    prompts = prompts_of(random, 6)
    num_new = [random.randint(1, 12) for _ in prompts]
    cache = Int8PagedCache(config, 20, 3, torch.float64)
    found, _ = serve(MODELS[config], cache, prompts, num_new, random)
    for (tokens, rows), prompt, num in zip(found, prompts, num_new, strict=True):
        expected_tokens, expected_rows = naive(ROUNDING[config], prompt, num)
        assert tokens == expected_tokens
        torch.testing.assert_close(torch.stack(rows), torch.stack(expected_rows))
        exact = naive(MODELS[config], prompt, 1)[1][0]
        assert 0 < (rows[0] - exact).norm() / exact.norm() < 0.02
    assert cache.num_free_pages == 20


def test_keys_and_values_of_8_bits_are_wrong_by_half_a_step_and_take_a_byte_each():
    config = GPTConfig(num_layers=3, hidden=64, num_heads=4, num_kv_heads=2)
    cache = Int8PagedCache(config, 4, 2)
    assert cache.bytes_per_token == 3 * 2 * 2 * (16 + 2)
    assert PagedCache(config, 4, 2).bytes_per_token == 3 * 2 * 2 * 16 * 4
    k_nGK, v_nGK = torch.randn(2, 5, 2, 16, generator=torch.Generator().manual_seed(0))
    slots_n = torch.tensor([7, 1, 0, 3, 2])
    cache.write(1, slots_n, k_nGK, v_nGK)
    for x_nGK, read_nGK in zip((k_nGK, v_nGK), cache.read(1, slots_n), strict=True):
        assert read_nGK.dtype == torch.float32
        half_nG1 = x_nGK.abs().amax(-1, keepdim=True) / 127 / 2
        assert ((read_nGK - x_nGK).abs() <= half_nG1 * (1 + 2**-8)).all()  # a scale's rounding
        assert (read_nGK - x_nGK).abs().max() > half_nG1.max() / 2


@pytest.mark.parametrize("make", [PagedCache, Int8PagedCache])
def test_a_copy_has_all_bits_and_as_many_bytes_as_its_tokens_in_the_cache(make):
    config = GPTConfig(num_layers=2, hidden=8, num_heads=2)
    cache, tokens = make(config, 8, 4, torch.bfloat16), list(range(9))
    cache.reserve(0, 9, 9)
    Decoder(GPT(config, dtype=torch.bfloat16))([ScheduledTokens(0, tokens, 0)], cache)
    copies = cache.swap_out(0)
    assert cache.swap_in(1, tokens, 9, copies)
    for copy, again in zip(copies, cache.swap_out(1), strict=True):
        assert torch.equal(copy, again)
    assert sum(copy.nbytes for copy in copies) == 9 * cache.bytes_per_token


def test_the_traffic_above_shares_pages_and_preempts():
    total = Counter()
    for seed in range(4):
        random = Random(seed)
        cache = PagedCache(LEARNED, 20, 3, torch.float64)
        answers, counts = serve(MODELS[LEARNED], cache, prompts_of(random, 6), [9] * 6, random)
        total += counts
        assert len({tuple(tokens[-9:]) for tokens, _ in answers}) > 3
    assert total["shared"] > 20
    assert total["preempted"] > 4


def test_a_head_stored_by_inputs_has_the_same_numbers_and_is_still_tied():
    plain, stored = model_of(LEARNED), store_head_by_inputs(model_of(LEARNED))
    assert stored.head.weight.stride() == (1, LEARNED.vocab)
    assert stored.head.weight is stored.embedding.token.weight
    tokens_BT = torch.arange(12).view(2, 6)
    torch.testing.assert_close(stored(tokens_BT), plain(tokens_BT), rtol=1e-12, atol=1e-12)


def test_a_sequence_with_rotary_positions_grows_beyond_the_context():
    random, cache = Random(0), PagedCache(ROTARY, 20, 4, torch.float64)
    ((tokens, _),), _ = serve(MODELS[ROTARY], cache, [[1, 2, 3]], [60], random)
    assert tokens == naive(MODELS[ROTARY], [1, 2, 3], 60)[0]
    assert len(set(tokens)) > 5


def answers(decoder, cache, sequences, num_new):
    """Greedy tokens of sequences that were forked; sequences: number -> tokens so far."""
    tokens = {i: list(each) for i, each in sequences.items()}
    for _ in range(num_new):
        batch = []
        for i, each in tokens.items():
            start = cache.num_cached(i)
            assert cache.reserve(i, len(each), 40)
            batch.append(ScheduledTokens(i, each[start:], start))
        for entry, row in zip(batch, decoder(batch, cache), strict=True):
            tokens[entry.sequence].append(int(row.argmax()))
    return tokens


@pytest.mark.parametrize(
    ("cache_class", "oracle"),
    [(PagedCache, MODELS[ROTARY]), (Int8PagedCache, ROUNDING[ROTARY])],
    ids=["exact", "int8"],
)
def test_forks_write_to_copies_of_the_page_that_they_share(cache_class, oracle):
    model, cache = MODELS[ROTARY], cache_class(ROTARY, 12, 4, torch.float64)
    prompt = [3, 1, 4, 1, 5, 9]
    answers(Decoder(model), cache, {0: prompt}, 1)
    cache.fork(0, 1)
    cache.fork(0, 2)
    assert (cache.num_free_pages, cache.pool.references[:2]) == (10, [3, 3])
    started = {i: [*prompt, i] for i in range(3)}
    found = answers(Decoder(model), cache, started, 5)
    assert cache.pool.references[:3] == [3, 1, 1]
    for i, tokens in found.items():
        assert tokens == naive(oracle, started[i], 5)[0]


def test_a_prompt_that_was_served_before_shares_its_full_pages():
    model, cache = MODELS[ROTARY], PagedCache(ROTARY, 12, 4, torch.float64)
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    answers(Decoder(model), cache, {0: prompt}, 1)
    assert cache.share_prefix(1, prompt) == 4  # the last token is computed, so not its page
    assert cache.share_prefix(2, [*prompt, 7]) == 8
    assert cache.share_prefix(3, [0, *prompt[1:], 7]) == 0
    assert cache.share_prefix(4, [*prompt[:4], 0, 0, 0, 0, 7]) == 4
    cache.free(0)
    assert cache.share_prefix(5, [*prompt, 7]) == 8  # as long as its pages were not taken
    found = answers(Decoder(model), cache, {2: [*prompt, 7], 5: [*prompt, 8]}, 3)
    assert found[2] == naive(model, [*prompt, 7], 3)[0]
    assert found[5] == naive(model, [*prompt, 8], 3)[0]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (ScheduledTokens(0, [1], 3), "has 2 cached tokens.*starts at 3"),
        (ScheduledTokens(0, [1, 2, 3], 2), r"has 4 slots.*ends at 5; call reserve\(0, 5"),
        (ScheduledTokens(1, [1] * 41, 0), "gets 41 tokens.*40 positions"),
    ],
)
def test_entries_that_cannot_be_computed_are_refused(entry, message):
    cache, decoder = PagedCache(LEARNED, 12, 4, torch.float64), Decoder(MODELS[LEARNED])
    cache.reserve(0, 2, 4)
    decoder([ScheduledTokens(0, [1, 2], 0)], cache)
    with pytest.raises(ValueError, match=message):
        decoder([entry], cache)


def test_without_a_cache_an_entry_starts_at_the_first_token():
    with pytest.raises(ValueError, match="no cached tokens.*starts at 1"):
        Decoder(MODELS[LEARNED])([ScheduledTokens(0, [1], 1)], NoCache(LEARNED))


@pytest.mark.parametrize("config", [LEARNED, ROTARY], ids=["learned", "rotary"])
def test_all_tensors_of_a_pass_are_on_the_device_of_model_and_cache(config):
    """The meta device computes nothing, and refuses most tensors of the CPU, as a GPU does."""
    decoder = Decoder(GPT(config).to("meta"))
    for cache in (
        NoCache(config, device="meta"),
        ContiguousCache(config, 120, device="meta"),
        Int8PagedCache(config, 30, 4, device="meta"),
        PagedCache(config, 30, 4, device="meta"),
    ):
        for sequence in range(2):
            cache.reserve(sequence, 3, 40)
        logits_SV = decoder([ScheduledTokens(0, [1, 2, 3], 0), ScheduledTokens(1, [1], 0)], cache)
        assert logits_SV.device.type == "meta"
    assert {copy.device.type for copy in cache.swap_out(0)} == {"meta"}
    assert cache.swap_in(2, [1, 2, 3], 40, [torch.zeros(2, 3, 2, 4)] * 2)
