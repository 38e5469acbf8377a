"""What tensor parallelism refuses: by name and with a fix, on every rank, with nothing sent."""

import pytest
import torch
from torch import nn

from labkit import run
from labkit.model import GPT, MLP, Attention, GPTConfig
from labkit.tensor_parallel import (
    ColumnLinear,
    HeadShares,
    ParallelAttention,
    ParallelMLP,
    Replicated,
    RowLinear,
    SequenceSharded,
    Sharding,
    column_linear,
    enter,
    even_sharding,
    gather_features,
    head_choices,
    leave,
    parallelize,
    row_linear,
    share_features,
    vocab_cross_entropy,
    vocab_embedding,
)

CONFIG = GPTConfig(vocab=8, context=4, num_layers=1, hidden=8, num_heads=2)
X, W, LINEAR = torch.ones(2, 3, 8), torch.ones(4, 8), nn.Linear(8, 8)
TOKENS, LOGITS = torch.zeros(1, 2, dtype=torch.int64), torch.ones(4, 8)


def refusals(world, calls):
    """What each call says, once a model is there; whether anything was sent for it."""
    model = parallelize(GPT(CONFIG), world)
    said = []
    with world.region("refusing"):
        for call in calls:
            try:
                call(world, model)
                said.append("nothing")
            except (TypeError, ValueError) as error:
                said.append(f"{type(error).__name__}: {error}")
    return said


def assert_refused(expected):
    """expected: words -> call(world, model)."""
    result = run(refusals, 2, (list(expected.values()),))
    for timeline in result.timeline:
        begin_s = timeline.regions[0].start_s
        assert not [each for each in timeline.operations if each.posted_s > begin_s]
    for said in result.values:
        for words, each in zip(expected, said, strict=True):
            assert words in each, (words, each)


def test_layers_want_an_activation_layout():
    assert_refused(
        {
            "TypeError: layout=None: give an activation": lambda world, _: enter(X, None),
            "TypeError: layout='tp': ": lambda world, _: leave(X, "tp"),
            "TypeError: layout=<class 'labkit": lambda world, _: enter(X, Replicated),
            "TypeError: layout=Group(world": lambda world, _: leave(X, world),
            "Replicated(group) or SequenceSharded(": lambda world, _: column_linear(X, None, W),
            "TypeError: layout=Parameter": lambda world, _: row_linear(X, LINEAR.weight, W),
            "TypeError: layout=3": lambda world, _: vocab_embedding(
                TOKENS, LOGITS[:4], range(4), 3
            ),
            "give an activation layout": lambda world, model: model.blocks[0].mlp(X, world),
            "TypeError: x=[1, 2]: give a tensor": lambda world, _: enter([1, 2], Replicated(world)),
            "TypeError: partial=None": lambda world, _: leave(None, Replicated(world)),
            "TypeError: x=None: give this rank's rows": lambda world, _: SequenceSharded(
                world, 2, 3
            ).whole(None),
            "TypeError: group='tp' is no Group": lambda world, _: Replicated("tp"),
            "TypeError: group=8 is no Group": lambda world, _: SequenceSharded(8, 2, 3),
        }
    )


def test_layers_are_made_of_layers_and_take_features_that_fit():
    assert_refused(
        {
            "TypeError: linear=None: give the whole torch.nn.Linear": lambda world, _: ColumnLinear(
                None, world
            ),
            "TypeError: linear=Parameter": lambda world, _: RowLinear(LINEAR.weight, world),
            "TypeError: mlp=Linear(": lambda world, _: ParallelMLP(LINEAR, world),
            "TypeError: attention=Linear(": lambda world, _: ParallelAttention(LINEAR, world),
            "TypeError: group=tensor(": lambda world, _: ColumnLinear(LINEAR, W),
            "TypeError: x=None: give all features": lambda world, _: ColumnLinear(LINEAR, world)(
                None
            ),
            "ValueError: x of shape (2, 3, 4) does not fit a weight of (4, 8)": lambda world, _: (
                ColumnLinear(LINEAR, world)(X[..., :4])
            ),
            "does not fit a weight of (8, 4): give this rank's features": lambda world, _: (
                RowLinear(LINEAR, world)(X)
            ),
            "TypeError: weight=Linear(": lambda world, _: column_linear(
                X, Replicated(world), LINEAR
            ),
            "ValueError: x of shape (2, 3, 8) does not fit": lambda world, _: column_linear(
                X, Replicated(world), W[:, :5]
            ),
            "ValueError: y of shape (2, 3, 8) does not fit": lambda world, _: row_linear(
                X, Replicated(world), W[:, :5]
            ),
            "TypeError: x=[1.0]": lambda world, _: share_features([1.0], world),
            "ValueError: x=1.0 has no dim": lambda world, _: share_features(X[0, 0, 0], world),
            "ValueError: y=1.0 has no dim": lambda world, _: gather_features(X[0, 0, 0], 4, world),
        }
    )


def test_words_are_tensors_of_numbers():
    def loss(logits, targets):
        return lambda world, _: vocab_cross_entropy(logits, targets, 16, world)

    def look_up(tokens, weight, vocab):
        return lambda world, _: vocab_embedding(tokens, weight, vocab, Replicated(world))

    assert_refused(
        {
            "pass targets.flatten().long()": loss(LOGITS, torch.zeros(4)),
            "TypeError: targets are torch.int64 of shape (), not token numbers": loss(
                LOGITS, TOKENS[0, 0]
            ),
            "tokens are torch.float32": look_up(TOKENS.float(), W, range(4)),
            "range(0, 9) are 9 rows; give (9, D)": look_up(TOKENS, W, range(9)),
            "TypeError: tokens=None: give a tensor of row numbers": lambda _, model: model(None),
            "TypeError: tokens=[[1]]": lambda _, model: model([[1]]),
            "TypeError: batch=tensor(": lambda _, model: model.loss(TOKENS),
        }
    )


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: even_sharding(None, 0, 2), TypeError, "length=None: give a whole number"),
        (lambda: even_sharding(-8, 0, 2), ValueError, "length=-8"),
        (lambda: even_sharding(8, 0, 0), ValueError, "num_ranks=0"),
        (lambda: even_sharding(8, "rows", 2), TypeError, "dim='rows': .*; which dim is cut"),
        (lambda: Sharding(0, (4, 4)), TypeError, r"ranges=\(4, 4\): give a range for each rank"),
        (lambda: Sharding(0, None), TypeError, "ranges=None"),
        (lambda: even_sharding(8, 0, 2).share(X, 9), ValueError, "rank=9: a rank, 0 to 1"),
        (
            lambda: even_sharding(8, 0, 2).share(None, 0),
            TypeError,
            "full=None: give the full tensor",
        ),
        (lambda: head_choices(0, 0), ValueError, "num_heads=0"),
        (lambda: head_choices(4, None), TypeError, "num_kv_heads=None"),
        (lambda: HeadShares(4, 2, 4).copies("a"), TypeError, "rank='a'"),
    ],
)
def test_cuts_are_of_numbers(call, error, words):
    with pytest.raises(error, match=words):
        call()


def of_the_default_group(world):
    """What takes a group takes None for the default one."""
    mlp, attention = ParallelMLP(MLP(CONFIG), None), ParallelAttention(Attention(CONFIG), None)
    made = [mlp, attention, Replicated(None), SequenceSharded(None, 1, 2)]
    return [each.group is world for each in made]


def test_none_is_the_default_group():
    assert run(of_the_default_group, 2).values == [[True] * 4] * 2
