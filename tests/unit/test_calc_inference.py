"""Formulas of serving: by hand, against the cards' own arithmetic, and against a real engine."""

import math
from functools import partial

import pytest

from labkit import calc
from labkit.calc.hardware import GPU
from labkit.calc.models import ModelConfig
from labkit.model import GPT, GPTConfig
from labkit.serving import (
    ContiguousCache,
    Decoder,
    Engine,
    PagedCache,
    Request,
    continuous,
)

TINY = ModelConfig(layers=1, hidden=4, heads=1, vocab=8, context=16)
N = int(calc.num_parameters(TINY))
# Reading the weights takes 1 s, and so do 10 new tokens.
SLOW = GPU(name="slow", memory_bytes=4 * N, flops_per_s=20 * N, memory_bytes_per_s=2 * N)
CACHED_S = float(calc.kv_cache_bytes_per_token(TINY)) / (2 * N)


def test_a_pass_takes_the_longer_of_memory_and_arithmetic():
    assert calc.pass_time(TINY, SLOW, 1) == 1
    assert float(calc.pass_time(TINY, SLOW, 25)) == pytest.approx(2.5)
    assert float(calc.pass_time(TINY, SLOW, 1, cached=30)) == pytest.approx(1 + 30 * CACHED_S)
    assert calc.pass_time("llama3-8b", "h100", 1).to("ms") == pytest.approx(4.79, abs=0.005)


@pytest.mark.parametrize("cached", [0, 1, 2])
def test_at_that_batch_arithmetic_takes_as_long_as_memory(cached):
    batch = float(calc.compute_bound_batch(TINY, SLOW, cached))
    parts = calc.pass_time(TINY, SLOW, batch, batch * cached).parts
    memory_s = parts["weights"].value + parts["cache"].value
    assert parts["arithmetic"].value == pytest.approx(memory_s)


def test_with_a_long_cache_no_batch_is_bound_by_arithmetic():
    assert float(calc.compute_bound_batch("llama3-8b", "h100", 8192)) == math.inf


def test_a_chunk_is_free_up_to_the_bound_by_arithmetic():
    assert calc.chunk_delay(TINY, SLOW, batch=4, chunk=6) == 0
    assert float(calc.chunk_delay(TINY, SLOW, batch=4, chunk=11)) == pytest.approx(0.5)


def test_few_tokens_read_few_experts():
    # arXiv:2401.04088: 12.9B of 46.7B parameters; a token cannot be faster than reading them
    active_s = 2 * 12_879_925_248 / 3.35e12
    assert float(calc.pass_time("mixtral-8x7b", "h100", 1)) == pytest.approx(active_s, rel=0.001)
    assert float(calc.pass_time("deepseek-v3", "h200", 1)) == pytest.approx(15.65e-3, rel=0.01)
    assert float(calc.pass_time("deepseek-v3", "h200", 32)) == pytest.approx(0.181, rel=0.01)
    every = 2 * 46_702_792_704 / 3.35e12
    assert float(calc.pass_time("mixtral-8x7b", "h100", 200)["weights"]) == pytest.approx(every)


def test_from_the_batch_on_that_is_bound_by_arithmetic_all_experts_are_read():
    batch = float(calc.compute_bound_batch("mixtral-8x7b", "h200"))
    assert batch == pytest.approx(747, abs=1)
    parts = calc.pass_time("mixtral-8x7b", "h200", batch).parts
    assert float(parts["weights"]) == pytest.approx(float(parts["arithmetic"]))


def test_gpus_share_weights_and_caches():
    one, four = (calc.pass_time("llama3-70b", "h100", 8, 8000, tp=tp) for tp in (1, 4))
    assert float(one) == pytest.approx(4 * float(four))
    # vllm-project/vllm, pull request 2031: 31,615 blocks of 16 tokens on 4 A100
    blocks = calc.requests_that_fit("llama2-70b", "a100-80g", 16, page_size=16, tp=4)
    assert float(blocks) == pytest.approx(32_670, rel=0.04)


def test_caches_and_weights_have_bits_of_their_own():
    fits = partial(calc.requests_that_fit, "llama3-8b", "h100", 8192)
    assert float(fits(cache_itemsize=1)) == pytest.approx(2 * float(fits()), abs=1)
    assert fits(itemsize=0.5, cache_itemsize=2) > fits()
    assert calc.pass_time("llama3-8b", "h100", 1, itemsize=0.5) < calc.pass_time(
        "llama3-8b", "h100", 1, itemsize=1
    )


def test_requests_that_fit_hold_whole_pages():
    assert calc.requests_that_fit("llama2-13b", "a100-40g", 2048) == 7
    assert calc.requests_that_fit("llama2-13b", "a100-40g", 300, page_size=16) == 48
    assert calc.requests_that_fit("llama2-70b", "a100-40g", 1) == 0


@pytest.mark.parametrize(("acceptance", "tokens"), [(0, 1), (0.5, 1.75), (1, 3)])
def test_a_pass_gives_the_accepted_tokens_and_one_more(acceptance, tokens):
    assert calc.speculative_tokens(acceptance, 2) == tokens
    assert calc.speculative_speedup(acceptance, 2, cost=0.25) == tokens / 1.5


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: calc.speculative_tokens(1.1, 2), "acceptance=1.1"),
        (lambda: calc.speculative_tokens(0.5, 0), "num_drafted=0"),
        (lambda: calc.speculative_speedup(0.5, 2, -1), "cost=-1"),
        (lambda: calc.pass_time(TINY, SLOW, 0), "tokens=0"),
        (lambda: calc.compute_bound_batch(TINY, SLOW, -1), "cached=-1"),
        (lambda: calc.requests_that_fit(TINY, SLOW, 0), "tokens=0"),
        (lambda: calc.requests_that_fit(TINY, SLOW, 8, usable=90), "usable=90"),
        (lambda: calc.kv_cache_bytes_per_token(TINY, 16), "itemsize=16"),
        (lambda: calc.pass_time(TINY, SLOW, 1, cache_itemsize=0), "itemsize=0"),
        (lambda: calc.requests_that_fit(TINY, SLOW, 1, page_size=0), "page_size=0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match=said):
        call()


CONFIG = GPTConfig(vocab=8, context=32, num_layers=1, hidden=8, num_heads=1)
PROMPTS, ANSWERS, LONGEST = (3, 5, 1, 7, 2), (6, 1, 9, 4, 2), 12


class Watched(Decoder):
    """Count the uses of the slots after each pass, before a request ends, summed by kind."""

    def __init__(self):
        super().__init__(GPT(CONFIG))
        self.slots = dict.fromkeys(("cached", "reserved", "internal"), 0)

    def __call__(self, pieces, cache):
        logits_SV = super().__call__(pieces, cache)
        final = {each.sequence: PROMPTS[each.sequence] + ANSWERS[each.sequence] for each in pieces}
        use = cache.slot_use({id: num_tokens - 1 for id, num_tokens in final.items()}, wanted=0)
        for kind in self.slots:
            self.slots[kind] += getattr(use, kind)
        return logits_SV


class Ending(Engine):
    """Requests whose answers have these lengths, though they may be longest."""

    def step(self):
        outputs = super().step()
        for each in list(self.running):
            if len(each.tokens) == PROMPTS[each.id] + ANSWERS[each.id]:
                self.cancel(each.id)
        return outputs


@pytest.mark.parametrize(
    ("cache", "predicted"),
    [
        (ContiguousCache(CONFIG, 64), calc.contiguous_cache_use(PROMPTS, ANSWERS, LONGEST)),
        (PagedCache(CONFIG, 32, 4), calc.paged_cache_use(PROMPTS, ANSWERS, 4)),
        (PagedCache(CONFIG, 64, 1), calc.paged_cache_use(PROMPTS, ANSWERS, 1)),
    ],
)
def test_the_use_of_slots_is_an_engines(cache, predicted):
    decoder = Watched()
    prompts = [[index] * length for index, length in enumerate(PROMPTS)]  # no prefix is shared
    Ending(decoder, cache, continuous).generate([Request(each, LONGEST) for each in prompts])
    assert decoder.slots == {kind: part.value for kind, part in predicted.parts.items()}
