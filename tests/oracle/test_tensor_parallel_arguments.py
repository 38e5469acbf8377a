"""Tensor parallelism refuses bad arguments by name, on every rank, with nothing sent."""

import torch
from torch import nn

from labkit import run
from labkit.model import GPT, MLP, Attention, GPTConfig
from labkit.tensor_parallel import (
    ColumnLinear,
    ParallelAttention,
    ParallelMLP,
    Replicated,
    RowLinear,
    SequenceSharded,
    column_linear,
    gather_features,
    parallelize,
    row_linear,
    vocab_cross_entropy,
    vocab_embedding,
)
from tests.refused import assert_refused

CONFIG = GPTConfig(vocab=8, context=4, num_layers=1, hidden=8, num_heads=2)
X, W, LINEAR = torch.ones(2, 3, 8), torch.ones(4, 8), nn.Linear(8, 8)
TOKENS, LOGITS = torch.zeros(1, 2, dtype=torch.int64), torch.ones(4, 8)


def loss(targets):
    return lambda world, _: vocab_cross_entropy(LOGITS, targets, 16, world)


def look_up(tokens, vocab):
    return lambda world, _: vocab_embedding(tokens, W, vocab, Replicated(world))


def test_inputs_that_do_not_fit_a_layer_are_refused():
    assert_refused(
        (lambda w, _: Replicated("tp"), TypeError, "group='tp' is no Group"),
        (lambda w, _: ColumnLinear(LINEAR, W), TypeError, "is no Group"),
        (
            lambda w, _: ColumnLinear(LINEAR, w)(X[..., :4]),
            ValueError,
            r"x of shape \(2, 3, 4\) does not fit a weight of \(4, 8\)",
        ),
        (
            lambda w, _: RowLinear(LINEAR, w)(X),
            ValueError,
            r"fit a weight of \(8, 4\): give this rank's features",
        ),
        (lambda w, _: column_linear(X, Replicated(w), W[:, :5]), ValueError, "x .* does not fit"),
        (lambda w, _: row_linear(X, Replicated(w), W[:, :5]), ValueError, "y .* does not fit"),
        (lambda w, _: gather_features(X, 4, w), ValueError, "has 2 of 4 features, but y has 8"),
        (lambda w, _: SequenceSharded(w, 2, 3).gather(X), ValueError, r"give \(3, D\)"),
        (lambda w, model: parallelize(model, w), TypeError, "model is a TensorParallelGPT"),
        (loss(torch.zeros(4)), TypeError, r"targets.flatten\(\).long\(\)"),
        (loss(torch.tensor([0, 16, 0, 0])), ValueError, r"target 16 is outside 0\.\.15"),
        (look_up(TOKENS.float(), range(4)), TypeError, "tokens are torch.float32"),
        (look_up(TOKENS, range(9)), ValueError, r"range\(0, 9\) are 9 rows; give \(9, D\)"),
        make=lambda world: parallelize(GPT(CONFIG), world),
    )


def of_the_default_group(world):
    """Everything that takes a group takes None for the default one."""
    mlp, attention = ParallelMLP(MLP(CONFIG), None), ParallelAttention(Attention(CONFIG), None)
    made = [mlp, attention, Replicated(None), SequenceSharded(None, 1, 2)]
    return [each.group is world for each in made]


def test_none_is_the_default_group():
    assert run(of_the_default_group, 2).values == [[True] * 4] * 2
