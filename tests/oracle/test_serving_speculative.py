"""Speculative decoding: greedy tokens are the target's own, and drawn ones have its distribution.

The rule is proved by enumeration: all drafts, and all random numbers that can make a difference.
"""

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.model import GPT, GPTConfig
from labkit.serving import (
    ContiguousCache,
    Decoder,
    NoCache,
    PagedCache,
    Request,
    Sampling,
    SpeculativeEngine,
    accept,
    chunked_prefill,
    continuous,
    preempting,
    priorities,
    static_batches,
)
from labkit.serving.requests import distribution

CONFIG = GPTConfig(vocab=7, context=40, num_layers=1, hidden=8, num_heads=2, num_kv_heads=1)
SMALL = GPTConfig(vocab=7, context=50, num_layers=1, hidden=4, num_heads=1)


def model_of(config, factor, seed=0):
    """With larger weights than at the start of training, when each token would predict itself."""
    model = GPT(config, seed, dtype=torch.float64)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(factor if weight.dim() == 2 and "token" not in name else 1)
    return model


MODEL = model_of(CONFIG, 20)
DRAFTS = {"itself": MODEL, "similar": model_of(CONFIG, 5), "another": model_of(SMALL, 20)}
CACHES = {
    "none": NoCache,
    "regions": lambda config: ContiguousCache(config, 80, torch.float64),
    "pages": lambda config: PagedCache(config, 11, 3, torch.float64),
    "few pages": lambda config: PagedCache(config, 2, 20, torch.float64),
}
SCHEDULERS = [
    static_batches,
    continuous,
    preempting,
    partial(chunked_prefill, token_budget=9),
    partial(priorities, token_budget=9, max_running=4),
]
LADDER = [
    (cache, scheduler)
    for cache in CACHES
    for scheduler in SCHEDULERS
    if cache != "none" or scheduler in SCHEDULERS[:3]
]
REQUESTS = st.builds(
    Request,
    # Prompts that begin alike share pages.
    prompt=st.builds(
        lambda same, own: [*([*range(7)] * 2)[:same], *own],
        st.sampled_from([0, 7, 12]),
        st.lists(st.integers(0, 6), min_size=1, max_size=8),
    ),
    max_new_tokens=st.sampled_from([1, 2, 5, 15]),
    stop=st.sampled_from([frozenset(), frozenset({3})]),
    priority=st.integers(0, 1),
)


@torch.no_grad()
def naive(request):
    """The greedy answer: all tokens in every forward of the target itself."""
    tokens = list(request.prompt)
    for _ in range(request.max_new_tokens):
        tokens.append(int(MODEL(torch.tensor([tokens]))[0, -1].argmax()))
        if tokens[-1] in request.stop:
            break
    return tokens[len(request.prompt) :]


def engine_of(cache, scheduler, draft, draft_cache="pages", num_drafts=3):
    small = DRAFTS[draft]
    return SpeculativeEngine(
        Decoder(MODEL),
        CACHES[cache](CONFIG),
        scheduler,
        draft=Decoder(small),
        draft_cache=CACHES[draft_cache](small.config),
        num_drafts=num_drafts,
    )


class Fails(Decoder):
    """A decoder of which some passes raise."""

    def __init__(self, model, random):
        super().__init__(model)
        self.random = random

    def __call__(self, batch, cache):
        if self.random.random() < 0.05:
            raise ConnectionError
        return super().__call__(batch, cache)


@settings(max_examples=120)
@given(
    st.sampled_from(LADDER),
    st.sampled_from(sorted(DRAFTS)),
    st.sampled_from(sorted(CACHES)),
    st.integers(1, 5),
    st.lists(REQUESTS, min_size=2, max_size=7),
    st.integers(0, 2**32).map(Random),
)
def test_any_traffic_gives_the_targets_greedy_tokens(
    rung, draft, draft_cache, num_drafts, requests, random
):
    """Requests come between steps, some are cancelled, and passes of both models fail."""
    engine, answers = engine_of(*rung, draft, draft_cache, num_drafts), {}
    num_free = engine.cache.num_free_pages, engine.draft_cache.num_free_pages
    engine.decoder, engine.draft = Fails(MODEL, random), Fails(DRAFTS[draft], random)
    coming, cancelled = list(requests), set()
    while coming or engine.has_work:
        if coming and random.random() < 0.7:
            answers[engine.add(coming.pop())] = []
        try:
            outputs = engine.step()
        except ConnectionError:
            continue
        for output in outputs:
            answers[output.id].append(output.token)
        if random.random() < 0.03:
            number = random.randrange(len(requests))
            engine.cancel(number)
            cancelled.add(number)
    for number, request in enumerate(reversed(requests)):
        expected = naive(request)
        if number in cancelled:
            expected = expected[: len(answers[number])]
        assert answers[number] == expected
    assert (engine.cache.num_free_pages, engine.draft_cache.num_free_pages) == num_free


def test_the_traffic_above_accepts_rejects_and_runs_without_drafts():
    total = Counter()
    for draft, cache in product(DRAFTS, ["pages", "few pages"]):
        engine = engine_of("pages", preempting, draft, cache)
        engine.generate(Request([*range(i)], 15) for i in range(2, 7))
        total += engine.accepted
    assert min(total[3, accepted] for accepted in range(4)) > 5
    assert total[0, 0] > 20


def test_a_draft_that_is_the_target_is_always_accepted():
    requests = [Request([1, 2, i], 20, Sampling(seed=i)) for i in range(4)]
    engine = engine_of("regions", continuous, "itself")
    engine.generate(requests)
    assert engine.acceptance_rate == 1
    assert engine.mean_acceptance_length == 4


def test_the_last_tokens_are_not_drafted_and_nothing_is_computed_for_them():
    """Seven tokens: one with the prompt, four with three drafts, two with one draft."""
    engine = engine_of("regions", continuous, "itself")
    engine.generate([Request([1, 2], 7)])
    assert engine.accepted == Counter({(0, 0): 1, (3, 3): 1, (1, 1): 1})


def test_the_draft_model_shares_prefixes_and_computes_accepted_tokens_once_more():
    class Counts(Decoder):
        def __call__(self, batch, cache):
            lengths.extend(len(entry.tokens) for entry in batch)
            return super().__call__(batch, cache)

    engine, lengths = engine_of("regions", continuous, "itself"), []
    engine.draft = Counts(MODEL)
    for _ in range(2):
        engine.generate([Request([*range(7), 1, 2], 9)])
    # The prompt with one token, and later four new ones after the last one of before. The second
    # time, two pages of three tokens are there.
    assert lengths == [10, 1, 1, 5, 1, 1, 4, 1, 1, 5, 1, 1]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (GPTConfig(vocab=8, context=40, hidden=4), "has 8 tokens and the target 7"),
        (GPTConfig(vocab=7, context=39, hidden=4), "has 39 positions, and the target 40"),
    ],
)
def test_a_draft_model_that_cannot_draft_for_the_target_is_refused(config, message):
    draft = Decoder(GPT(config))
    with pytest.raises(ValueError, match=message):
        SpeculativeEngine(
            Decoder(MODEL), NoCache(CONFIG), continuous, draft=draft, draft_cache=NoCache(config)
        )


def test_logits_that_are_not_finite_end_only_their_request():
    class Broken(Decoder):
        def __call__(self, batch, cache):
            logits_nV = super().__call__(batch, cache)
            if len(batch) == 2 and len(batch[0].tokens) > 1:
                logits_nV[0] = torch.nan
            return logits_nV

    engine = engine_of("pages", preempting, "another")
    requests = [Request([1], 9), Request([2], 9)]
    ids = [engine.add(each) for each in requests]
    engine.step()
    engine.decoder = Broken(MODEL)
    outputs = engine.step()
    assert [each.finish_reason for each in outputs if each.id == ids[0]] == ["error"]
    while engine.has_work:
        outputs += engine.step()
    answer = [each.token for each in outputs if each.id == ids[1]]
    assert answer == naive(requests[1])[1:]
    assert (engine.cache.num_free_pages, engine.draft_cache.num_free_pages) == (11, 11)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_without_numbers_drafts_nothing_and_no_request_ends(temperature):
    class Broken(Decoder):
        def __call__(self, batch, cache):
            logits_SV = super().__call__(batch, cache)
            logits_SV[len(batch[0].tokens) == 1 :] = torch.nan
            return logits_SV

    engine = engine_of("pages", preempting, "itself")
    engine.draft = Broken(MODEL)
    requests = [Request([i, 1], 6, Sampling(temperature, seed=i)) for i in range(2)]
    answers = engine.generate(requests)
    assert [len(answer) for answer in answers] == [6, 6]
    assert {num_drafts for num_drafts, _ in engine.accepted} == {0}
    assert (engine.cache.num_free_pages, engine.draft_cache.num_free_pages) == (11, 11)


# Probabilities are multiples of 1/4, so p / q and a residual scaled to 1 are multiples of 1/12. Of
# the random numbers in (i/12, (i + 1)/12), all lead to the same tokens: one stands for all.
QUARTERS = [
    torch.tensor(each, dtype=torch.float64) / 4
    for each in product(range(5), repeat=3)
    if sum(each) == 4
]
TWELFTHS = [(i + 0.5) / 12 for i in range(12)]


def outcomes(target, draft, k):
    """Each sequence of tokens that a check of k drafts can give, and its probability.

    target, draft: from the tokens before to the distribution of the next one.
    """
    found = Counter()
    for drafts in product(range(3), repeat=k):
        before = [drafts[:i] for i in range(k + 1)]
        draft_kV = [draft[each] for each in before[:k]]
        chance = torch.stack([q_V[token] for q_V, token in zip(draft_kV, drafts, strict=True)])
        if not (weight := chance.prod().item()):
            continue
        for uniforms in product(TWELFTHS, repeat=k + 1):
            tokens = accept([target[each] for each in before], draft_kV, drafts, uniforms)
            found[tuple(tokens)] += weight / 12 ** (k + 1)
    return found


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_outcomes_have_the_targets_distribution_exactly(k, seed):
    """An outcome is k + 1 tokens; after a rejected draft the target goes on by itself."""
    random = Random(seed)
    prefixes = [each for length in range(k + 1) for each in product(range(3), repeat=length)]
    target, draft = ({each: random.choice(QUARTERS) for each in prefixes} for _ in range(2))
    found = outcomes(target, draft, k)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    for length in range(1, k + 1):
        for tokens in [each for each in found if len(each) == length]:
            chance = found.pop(tokens)
            for token, p in enumerate(target[tokens].tolist()):
                found[*tokens, token] += chance * p
    for tokens in product(range(3), repeat=k + 1):
        expected = 1.0
        for i, token in enumerate(tokens):
            expected *= target[tokens[:i]][token].item()
        assert found[tokens] == pytest.approx(expected, abs=1e-12)


def test_each_pair_of_distributions_gives_the_first_token_the_targets_one():
    for p_V, q_V in product(QUARTERS, repeat=2):
        found = Counter()
        for tokens, chance in outcomes(
            {(): p_V} | {(i,): p_V for i in range(3)}, {(): q_V}, 1
        ).items():
            found[tokens[0]] += chance
        assert [found[token] for token in range(3)] == pytest.approx(p_V.tolist(), abs=1e-12)


def test_the_mean_number_of_tokens_is_that_of_the_formula():
    p_V, q_V = QUARTERS[4], QUARTERS[10]
    a = torch.minimum(p_V, q_V).sum().item()
    assert 0 < a < 1
    prefixes = [each for length in range(3) for each in product(range(3), repeat=length)]
    found = outcomes(dict.fromkeys(prefixes, p_V), dict.fromkeys(prefixes, q_V), 2)
    mean = sum(len(tokens) * chance for tokens, chance in found.items())
    assert mean == pytest.approx((1 - a**3) / (1 - a), abs=1e-12)


def test_drawn_answers_have_the_targets_distribution_by_a_chi_square_test():
    """2000 answers of four tokens, each with a seed of its own; rare answers count together."""
    prompt, num_answers, how = [1, 2], 2000, Sampling(temperature=0.05, top_k=3)
    engine, seen = engine_of("regions", continuous, "similar", num_drafts=2), Counter()
    for first in range(0, num_answers, 8):
        requests = [Request(prompt, 4, replace(how, seed=first + i)) for i in range(8)]
        seen.update(map(tuple, engine.generate(requests)))
    assert 0.2 < engine.acceptance_rate < 0.8
    means = {(): float(num_answers)}
    for _ in range(4):
        means = {
            (*answer, token): mean * p
            for answer, mean in means.items()
            for token, p in enumerate(next_token(MODEL, [*prompt, *answer], how).tolist())
        }
    often = [answer for answer, mean in means.items() if mean >= 5]
    cells = [(seen.pop(answer), means[answer]) for answer in often]
    cells.append((seen.total(), num_answers - sum(mean for _, mean in cells)))
    statistic = sum((num - mean) ** 2 / mean for num, mean in cells)
    degrees = torch.tensor((len(cells) - 1) / 2)
    assert torch.special.gammaincc(degrees, torch.tensor(statistic / 2)) > 0.01


@torch.no_grad()
def next_token(model, tokens, sampling):
    """The distribution of the token that follows."""
    return distribution(model(torch.tensor([tokens]))[0, -1], sampling)
