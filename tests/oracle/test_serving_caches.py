"""Every cache against naive generation, in float64: the same tokens, and the same logits.

Naive: one sequence at a time, all of its tokens in every forward of the model itself. The traffic
mixes whole prompts, chunks and single tokens in a pass, of sequences that come and go.
"""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch

from labkit.model import GPT, GPTConfig
from labkit.serving import ContiguousCache, Decoder, NoCache, PagedCache, Piece

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


MODELS = {config: model_of(config) for config in (LEARNED, ROTARY)}


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
    """Random pieces of random sequences until all have their tokens: (tokens, logits) of each."""
    decoder = Decoder(model)
    tokens, rows = [list(prompt) for prompt in prompts], [[] for _ in prompts]
    waiting, active, counts = list(range(len(prompts))), [], Counter()
    longest = [len(prompt) + num for prompt, num in zip(prompts, num_new, strict=True)]
    while waiting or active:
        if waiting and random.random() < 0.6:
            counts["shared"] += cache.share_prefix(waiting[0], tokens[waiting[0]])
            active.append(waiting.pop(0))
        pieces = []
        for i in sorted(active, key=lambda _: random.random()):
            start = cache.num_cached(i)
            rest = len(tokens[i]) - start
            is_whole = isinstance(cache, NoCache) or random.random() < 0.4
            length = rest if is_whole else random.randint(1, rest)
            if cache.reserve(i, start + length, longest[i]):
                pieces.append(Piece(i, tokens[i][start : start + length], start))
        if active and not pieces:
            victim = active.pop()  # preempted: computed again later
            cache.free(victim)
            counts["preempted"] += 1
            waiting.insert(0, victim)
        if not pieces:
            continue
        for piece, row in zip(pieces, decoder(pieces, cache), strict=True):
            i = piece.sequence
            if piece.end == len(tokens[i]):
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


def test_a_sequence_with_rotary_positions_grows_beyond_the_context():
    random, cache = Random(0), PagedCache(ROTARY, 20, 4, torch.float64)
    ((tokens, _),), _ = serve(MODELS[ROTARY], cache, [[1, 2, 3]], [60], random)
    assert tokens == naive(MODELS[ROTARY], [1, 2, 3], 60)[0]
    assert len(set(tokens)) > 5


def answers(decoder, cache, sequences, num_new):
    """Greedy tokens of sequences that were forked; sequences: number -> tokens so far."""
    tokens = {i: list(each) for i, each in sequences.items()}
    for _ in range(num_new):
        pieces = []
        for i, each in tokens.items():
            start = cache.num_cached(i)
            assert cache.reserve(i, len(each), 40)
            pieces.append(Piece(i, each[start:], start))
        for piece, row in zip(pieces, decoder(pieces, cache), strict=True):
            tokens[piece.sequence].append(int(row.argmax()))
    return tokens


def test_forks_write_to_copies_of_the_page_that_they_share():
    model, cache = MODELS[ROTARY], PagedCache(ROTARY, 12, 4, torch.float64)
    prompt = [3, 1, 4, 1, 5, 9]
    answers(Decoder(model), cache, {0: prompt}, 1)
    cache.fork(0, 1)
    cache.fork(0, 2)
    assert (cache.num_free_pages, cache.pool.references[:2]) == (10, [3, 3])
    begun = {i: [*prompt, i] for i in range(3)}
    found = answers(Decoder(model), cache, begun, 5)
    assert cache.pool.references[:3] == [3, 1, 1]
    for i, tokens in found.items():
        assert tokens == naive(model, begun[i], 5)[0]


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
    ("piece", "message"),
    [
        (Piece(0, [1], 3), "has 2 cached tokens.*starts at 3"),
        (Piece(0, [1, 2, 3], 2), r"has 4 slots.*ends at 5; call reserve\(0, 5"),
        (Piece(1, [1] * 41, 0), "gets 41 tokens.*40 positions"),
    ],
)
def test_pieces_that_cannot_be_computed_are_refused(piece, message):
    cache, decoder = PagedCache(LEARNED, 12, 4, torch.float64), Decoder(MODELS[LEARNED])
    cache.reserve(0, 2, 4)
    decoder([Piece(0, [1, 2], 0)], cache)
    with pytest.raises(ValueError, match=message):
        decoder([piece], cache)


def test_without_a_cache_a_piece_starts_at_the_first_token():
    with pytest.raises(ValueError, match="no cached tokens.*starts at 1"):
        Decoder(MODELS[LEARNED])([Piece(0, [1], 1)], NoCache(LEARNED))


@pytest.mark.parametrize("config", [LEARNED, ROTARY], ids=["learned", "rotary"])
def test_all_tensors_of_a_pass_are_on_the_device_of_model_and_cache(config):
    """The meta device computes nothing, and refuses most tensors of the CPU, as a GPU does."""
    decoder = Decoder(GPT(config).to("meta"))
    for cache in (
        NoCache(config, device="meta"),
        ContiguousCache(config, 120, device="meta"),
        PagedCache(config, 30, 4, device="meta"),
    ):
        for sequence in range(2):
            cache.reserve(sequence, 3, 40)
        logits_SV = decoder([Piece(0, [1, 2, 3], 0), Piece(1, [1], 0)], cache)
        assert logits_SV.device.type == "meta"
    assert cache.copy_out(0).device.type == "meta"
    assert cache.copy_in(2, [1, 2, 3], 40, torch.zeros(2, 2, 3, 2, 4))
