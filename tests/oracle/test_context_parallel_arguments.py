"""What attention over cut sequences refuses: on every rank, in words, before anything is sent."""

import re

import pytest
import torch

from labkit import RankError, RunError, run
from labkit.context_parallel import (
    ContextParallelGPT,
    attend,
    contiguous,
    gather_sequence,
    gathered_attention,
    merge,
    ring_attention,
    shard_sequence,
    train,
    ulysses_attention,
    zigzag,
)
from labkit.model import GPT, GPTConfig

STRATEGIES = [ring_attention, ulysses_attention, gathered_attention]


def refusals(world, calls):
    """What each call says."""
    said = []
    for call in calls:
        try:
            call(world)
            said.append("nothing")
        except (TypeError, ValueError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def refused_by_all(calls, world_size=2):
    """The words of each refusal, on all ranks; nothing is sent."""
    result = run(refusals, world_size, (calls,))
    assert all(timeline.operations == [] for timeline in result.timeline)
    return list(zip(*result.values, strict=True))


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


Q, K1, K2 = (2, 4, 6, 8), (2, 1, 6, 8), (2, 2, 6, 8)
# words -> arguments of an attention on every rank of 2
WRONG = {
    "TypeError: expected a tensor, got 3": lambda: ((3, ones(*Q), ones(*Q)), {}),
    "ValueError: k has 3 dims, not 4: .batch, heads, time": lambda: (
        (ones(*Q), ones(2, 6, 8), ones(*Q)),
        {},
    ),
    "TypeError: q, k, v are torch.float32, torch.float64": lambda: (
        (ones(*Q), ones(*Q, dtype=torch.float64), ones(*Q)),
        {},
    ),
    "TypeError: q, k, v are torch.int64": lambda: ((ones(*Q, dtype=torch.int64),) * 3, {}),
    "k and v must be equal in shape": lambda: ((ones(*Q), ones(*Q), ones(*K2)), {}),
    "differ from q in the number of heads only": lambda: (
        (ones(*Q), *(ones(2, 4, 5, 8),) * 2),
        {},
    ),
    "ValueError: 3 heads of keys do not divide 4 heads .* give 1, 2, 4": lambda: (
        (ones(*Q), *(ones(2, 3, 6, 8),) * 2),
        {},
    ),
    "TypeError: placement='zigzag': give a function": lambda: (
        (ones(*Q),) * 3,
        {"placement": "zigzag"},
    ),
    "TypeError: num_tokens=12.0: give a whole number": lambda: (
        (ones(*Q),) * 3,
        {"num_tokens": 12.0},
    ),
    "ValueError: num_tokens=-1": lambda: ((ones(*Q),) * 3, {"num_tokens": -1}),
    r"holds \d of 9 tokens, but its shard has 6; cut with shard_sequence": lambda: (
        (ones(*Q),) * 3,
        {"num_tokens": 9},
    ),
}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_wrong_arguments_are_named_on_every_rank(strategy):
    def calling(make):
        args, options = make()
        return lambda world: strategy(*args, world, **options)

    for words, said in zip(
        WRONG, refused_by_all([calling(make) for make in WRONG.values()]), strict=True
    ):
        assert all(re.search(words, each) for each in said), (words, said)


def test_ulysses_names_the_sizes_that_deal_out_heads():
    def attend(heads, heads_of_keys):
        q, k = ones(1, heads, 2, 4), ones(1, heads_of_keys, 2, 4)
        return lambda world: ulysses_attention(q, k, k, world)

    few, uneven = refused_by_all([attend(4, 2), attend(8, 4)], world_size=3)
    for each in few:
        assert "2 heads of keys are fewer than 3 ranks" in each
        assert "a group of 1, 2 ranks, or ring_attention" in each
    for each in uneven:
        assert "4 heads of keys cannot be dealt out equally to 3 ranks" in each
        assert "a group of 1, 2, 4 ranks" in each


def test_sequences_are_cut_along_a_dim_that_is_there():
    calls = {
        "expected a tensor, got": lambda world: shard_sequence([1, 2], world),
        "such as torch.tensor(tokens)[None]": lambda world: gather_sequence(None, world),
        "dim='T': give a whole number; say which": lambda world: shard_sequence(
            ones(2, 3), world, dim="T"
        ),
        "dim=2 of a tensor of shape": lambda world: shard_sequence(ones(2, 3), world, dim=2),
        "placement=None: give a function": lambda world: shard_sequence(ones(2, 3), world, None),
        "dim=1 of a tensor of shape": lambda world: gather_sequence(ones(2), world),
        "but its shard has 3": lambda world: gather_sequence(ones(2, 3), world, num_tokens=9),
    }
    for words, said in zip(calls, refused_by_all(list(calls.values())), strict=True):
        assert all(words in each for each in said), (words, said)


def test_a_model_needs_an_attention_a_placement_and_whole_sequences():
    config = GPTConfig(context=8, num_layers=1, hidden=8, num_heads=2)
    calls = {
        "attention='ring': give a function": lambda world: ContextParallelGPT(
            config, world, "ring"
        ),
        "placement=2: give a function": lambda world: ContextParallelGPT(
            config, world, ring_attention, 2
        ),
        "5 tokens, and this model's ranks share sequences of context=8": lambda world: (
            ContextParallelGPT(config, world)(torch.zeros(1, 5, dtype=torch.long))
        ),
        "tokens are torch.float32": lambda world: ContextParallelGPT(config, world)(ones(1, 8)),
    }
    for words, said in zip(calls, refused_by_all(list(calls.values())), strict=True):
        assert all(words in each for each in said), (words, said)


def another_on_rank_1(world, what):
    """Every rank's own arguments are right, but rank 1's are others."""
    is_other = world.rank == 1
    x = ones(1 + (is_other and what == "batch"), 2, 4, 8)
    if is_other and what == "dtype":
        x = x.double()
    placement = zigzag if is_other and what == "placement" else contiguous
    causal = not (is_other and what == "mask")
    num_tokens = (7, 9)[is_other] if what == "length" else 8
    ring_attention(x, x, x, world, causal, placement, num_tokens=num_tokens)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("batch", "has shape .*, but the buffer"),
        ("dtype", r"has dtype float\d\d, but the buffer"),
        ("placement", "keys and values, causal, zigzag"),
        ("mask", "keys and values, no mask, contiguous"),
        ("length", "holds 4 of 9 tokens, but|of 9 tokens|has shape .*, but the buffer"),
    ],
)
def test_ranks_that_mean_different_things_are_told_so(what, words):
    # A group that disagrees would wait for ever, or add up what does not belong together.
    with pytest.raises((RunError, RankError), match=words):
        run(another_on_rank_1, 2, (what,), timeout=120)


def another_attention_on_rank_1(world, attention, what):
    x = ones(1, 2, 4, 8)
    placement = zigzag if what == "placement" and world.rank == 1 else contiguous
    causal = not (what == "mask" and world.rank == 1)
    attention(x, x, x, world, causal, placement)


@pytest.mark.parametrize("attention", STRATEGIES[1:])
@pytest.mark.parametrize(("what", "words"), [("placement", "zigzag"), ("mask", "no mask")])
def test_so_they_are_where_tokens_are_exchanged_by_collectives(attention, what, words):
    with pytest.raises((RunError, RankError), match=words):
        run(another_attention_on_rank_1, 2, (attention, what), timeout=120)


def unequal_shards_without_a_length(world):
    """7 tokens over 3 ranks, and nobody says so: 9, 6 and 6 by each rank's own count."""
    x = shard_sequence(ones(1, 2, 7, 8), world, dim=2)
    ring_attention(x, x, x, world)


def test_unequal_shards_need_the_length():
    with pytest.raises((RunError, RankError), match="has shape .*, but the buffer"):
        run(unequal_shards_without_a_length, 3, timeout=120)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: contiguous(None, 2, 0), TypeError, "num_tokens=None: give a whole number"),
        (lambda: zigzag(2.5, 2, 0), TypeError, "num_tokens=2.5"),
        (lambda: contiguous(8, 0, 0), ValueError, "size=0: how many ranks"),
        (lambda: zigzag(8, 2, 5), ValueError, "rank=5: a rank, 0 to 1"),
        (lambda: attend(None, ones(2, 8), ones(2, 8)), TypeError, "q_XtK=None: give a tensor"),
        (lambda: attend(*[ones(2, 8)] * 3, "causal"), TypeError, "mask_ts='causal': .* booleans"),
        (lambda: attend(*[ones(2, 8)] * 3, ones(2, 2)), TypeError, "mask_ts is torch.float32"),
        (
            lambda: attend(*[ones(2, 8)] * 3, ones(3, 3) > 0),
            ValueError,
            r"mask_ts of shape \(3, 3\): give booleans \(2, 2\)",
        ),
        (lambda: merge(None, None), TypeError, r"a=None: give \(out_XtK, lse_Xt\)"),
        (lambda: merge((1, 2), ones(2, 2)), TypeError, r"b=tensor.*what attend returns"),
    ],
)
def test_places_and_blocks_are_named_where_they_are_wrong(call, error, words):
    with pytest.raises(error, match=f"(?s){words}"):
        call()


def test_training_needs_sizes_and_settings():
    config = GPTConfig(context=8, num_layers=1, hidden=8, num_heads=2)
    calls = {
        "config=None: give a GPTConfig": lambda world: train(world, None, None),
        "settings={}: give a TrainConfig": lambda world: train(world, config, {}),
        "TypeError: config=GPT(": lambda world: ContextParallelGPT(GPT(config), world),
    }
    for words, said in zip(calls, refused_by_all(list(calls.values())), strict=True):
        assert all(words in each for each in said), (words, said)
