"""Attention over sharded sequences refuses bad arguments on every rank, before anything is sent."""

import pytest
import torch

from labkit import RankError, RunError, run
from labkit.context_parallel import (
    ContextParallelGPT,
    contiguous,
    gather_sequence,
    gathered_attention,
    ring_attention,
    shard_sequence,
    ulysses_attention,
    zigzag,
)
from labkit.model import GPTConfig
from tests.refused import assert_refused

STRATEGIES = [ring_attention, ulysses_attention, gathered_attention]
CONFIG = GPTConfig(context=8, num_layers=1, hidden=8, num_heads=2)


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, dtype=dtype)


Q, K1, K2 = (2, 4, 6, 8), (2, 1, 6, 8), (2, 2, 6, 8)


def heads_of_keys(num_heads, num_heads_of_keys):
    return (ones(1, num_heads, 2, 4), *(ones(1, num_heads_of_keys, 2, 4),) * 2)


# an attention's arguments, error, words
WRONG = [
    ((3, ones(*Q), ones(*Q)), {}, TypeError, "got 3"),
    ((ones(*Q), ones(2, 6, 8), ones(*Q)), {}, ValueError, "k has 3 dims, not 4: .batch, heads"),
    ((ones(*Q), ones(*Q), ones(*Q).double()), {}, TypeError, "torch.float32, torch.float64"),
    ((ones(*Q, dtype=torch.int64),) * 3, {}, TypeError, "q, k, v are torch.int64"),
    ((ones(*Q), ones(*Q), ones(*K2)), {}, ValueError, "k and v must be equal in shape"),
    ((ones(*Q), *(ones(2, 4, 5, 8),) * 2), {}, ValueError, "differ from q in .* heads only"),
    ((ones(*Q), *(ones(2, 3, 6, 8),) * 2), {}, ValueError, "3 heads .* 4 heads .* give 1, 2, 4"),
    ((ones(*Q),) * 3, {"num_tokens": 9}, ValueError, "of 9 tokens, but its shard has 6; cut with"),
]


def test_wrong_arguments_are_named_on_every_rank():
    assert_refused(
        *(
            (
                lambda w, f=attention, args=args, options=options: f(*args, w, **options),
                error,
                words,
            )
            for attention in STRATEGIES
            for args, options, error, words in WRONG
        ),
        (lambda w: shard_sequence(ones(2, 3), w, dim=2), ValueError, "dim=2 of a tensor of shape"),
        (lambda w: gather_sequence(ones(2), w), ValueError, "dim=1 of a tensor of shape"),
        (lambda w: gather_sequence(ones(2, 3), w, num_tokens=9), ValueError, "its shard has 3"),
        (
            lambda w: ContextParallelGPT(CONFIG, w)(torch.zeros(1, 5, dtype=torch.long)),
            ValueError,
            "5 tokens, .* share sequences of context=8",
        ),
        (lambda w: ContextParallelGPT(CONFIG, w)(ones(1, 8)), TypeError, "tokens are torch.float"),
    )


def test_ulysses_names_group_sizes_that_divide_the_heads():
    assert_refused(
        (
            lambda w: ulysses_attention(*heads_of_keys(4, 2), w),
            ValueError,
            "2 heads of keys are fewer than 3 ranks.* a group of 1, 2 ranks, or ring_attention",
        ),
        (
            lambda w: ulysses_attention(*heads_of_keys(8, 4), w),
            ValueError,
            "4 heads of keys cannot be dealt out equally to 3 ranks.* a group of 1, 2, 4 ranks",
        ),
        world_size=3,
    )


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
def test_ranks_with_different_arguments_get_an_error(what, words):
    # A group that disagrees would wait for ever, or add up what does not belong together.
    with pytest.raises((RunError, RankError), match=words):
        run(another_on_rank_1, 2, (what,), timeout=600)


def another_attention_on_rank_1(world, attention, what):
    x = ones(1, 2, 4, 8)
    placement = zigzag if what == "placement" and world.rank == 1 else contiguous
    causal = not (what == "mask" and world.rank == 1)
    attention(x, x, x, world, causal, placement)


@pytest.mark.parametrize("attention", STRATEGIES[1:])
@pytest.mark.parametrize(("what", "words"), [("placement", "zigzag"), ("mask", "no mask")])
def test_ranks_with_another_placement_or_mask_get_an_error_from_collectives_too(
    attention, what, words
):
    with pytest.raises((RunError, RankError), match=words):
        run(another_attention_on_rank_1, 2, (attention, what), timeout=600)


def unequal_shards_without_a_length(world):
    """7 tokens over 3 ranks, and nobody says so: 9, 6 and 6 by each rank's own count."""
    x = shard_sequence(ones(1, 2, 7, 8), world, dim=2)
    ring_attention(x, x, x, world)


def test_unequal_shards_need_the_length():
    with pytest.raises((RunError, RankError), match="has shape .*, but the buffer"):
        run(unequal_shards_without_a_length, 3, timeout=600)
