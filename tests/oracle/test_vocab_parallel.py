"""Embedding and cross-entropy over a vocabulary that is cut, against torch's over the whole."""

import pytest
import torch
from torch.nn import functional as F

from labkit import RankError, calc, run
from labkit.tensor_parallel import (
    Replicated,
    SequenceSharded,
    even_sharding,
    vocab_cross_entropy,
    vocab_embedding,
)

NUM_TOKENS = 13
# With a vocabulary of 3, one of 4 ranks has no tokens.
VOCABS = [3, 10, 64]


def share_of(whole, world, dim):
    return whole.tensor_split(world.size, dim)[world.rank]


def cross_entropy(world, vocab, size, dtype):
    """(loss, this rank's part of the gradient), and torch's of the whole in float64."""
    torch.manual_seed(vocab)
    logits = (torch.randn(NUM_TOKENS, vocab, dtype=torch.float64) * size).to(dtype)
    targets = torch.randint(vocab, (NUM_TOKENS,))
    share = share_of(logits, world, 1).clone().requires_grad_()
    loss = vocab_cross_entropy(share, targets, vocab, world)
    (loss / 3).backward()
    whole = logits.double().requires_grad_()
    expected = F.cross_entropy(whole, targets, reduction="sum")
    (expected / 3).backward()
    return loss.detach(), share.grad, expected.detach(), share_of(whole.grad, world, 1)


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_loss_and_its_gradient_are_those_of_all_logits(world_size, vocab):
    for found, grad, expected, of_share in run(
        cross_entropy, world_size, (vocab, 3.0, torch.float64)
    ).values:
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)
        torch.testing.assert_close(grad, of_share, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("size", [1e4, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_logits_do_not_overflow_and_16_bits_are_computed_in_32(dtype, size):
    """A sum of 64 exponentials in float32: 64 eps. The gradient is rounded to its dtype once."""
    for found, grad, expected, of_share in run(cross_entropy, 3, (64, size, dtype)).values:
        assert found.dtype == torch.float32 and grad.dtype == dtype
        eps = torch.finfo(torch.float32).eps
        # the largest logit is subtracted from the target's: an error of eps of the larger one
        slack = NUM_TOKENS * size * eps * 8
        torch.testing.assert_close(found.double(), expected, rtol=64 * eps, atol=slack)
        torch.testing.assert_close(
            grad.double(), of_share, rtol=torch.finfo(dtype).eps + 1e-4, atol=1e-7
        )


def losses_are_equal(world):
    torch.manual_seed(0)
    logits, targets = torch.randn(NUM_TOKENS, 10), torch.randint(10, (NUM_TOKENS,))
    return vocab_cross_entropy(share_of(logits, world, 1), targets, 10, world).item()


def test_every_rank_has_the_same_loss_bit_for_bit():
    assert len(set(run(losses_are_equal, 4).values)) == 1


@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 8), (torch.bfloat16, 4)])
def test_three_numbers_per_token_are_sent_and_none_in_backward(dtype, size):
    result = run(cross_entropy, 4, (64, 1.0, dtype))
    operations = result.timeline[0].operations
    assert [op.kind for op in operations] == ["all_reduce", "all_reduce"]
    assert [op.payload_bytes for op in operations] == [size * NUM_TOKENS, 2 * size * NUM_TOKENS]
    model = calc.ModelConfig(layers=1, hidden=8, heads=8, vocab=64, context=NUM_TOKENS)
    said = calc.tensor_parallel_traffic_bytes(model, 1, 4, itemsize=dtype.itemsize)["loss"]
    assert sum(op.sent_bytes for op in operations) == said


def embedding(world, vocab, form):
    B, T, D = 2, 5, 3
    torch.manual_seed(1)
    table = torch.randn(vocab, D, dtype=torch.float64)
    tokens = torch.randint(vocab, (B, T))
    tokens[0] = tokens[0, 0]  # one token several times: its gradients add up
    sharding = even_sharding(vocab, 0, world.size)
    mine = sharding.parameter(table.requires_grad_(), world.rank)
    layout = Replicated(world) if form == "replicated" else SequenceSharded(world, B, T)
    x = vocab_embedding(tokens, mine, sharding.ranges[world.rank], layout)
    weights = torch.arange(B * T * D, dtype=torch.float64).view(B * T, D)
    whole = table.detach().clone().requires_grad_()
    rows = F.embedding(tokens, whole).flatten(0, 1)
    (rows * weights).sum().backward()
    expected = rows.detach().view(B, T, D)
    if form == "sequence-sharded":
        pick, missing = layout.rows, layout.num_rows - len(layout.rows)
        expected, weights = (
            F.pad(each[pick.start : pick.stop], (0, 0, 0, missing))
            for each in (rows.detach(), weights)
        )
    (x * weights.view_as(x)).sum().backward()
    torch.testing.assert_close(x.detach(), expected, rtol=0, atol=0)
    torch.testing.assert_close(mine.grad, share_of(whole.grad, world, 0))


@pytest.mark.parametrize("form", ["replicated", "sequence-sharded"])
@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_each_token_is_looked_up_by_the_rank_that_has_it(world_size, vocab, form):
    run(embedding, world_size, (vocab, form))


def wrong_share(world):
    targets = torch.zeros(NUM_TOKENS, dtype=torch.int64)
    vocab_cross_entropy(torch.zeros(NUM_TOKENS, 10), targets, 10, world)


def wrong_target(world):
    targets = torch.full((NUM_TOKENS,), 10)
    vocab_cross_entropy(torch.zeros(NUM_TOKENS, 5), targets, 10, world)


def float_targets(world):
    vocab_cross_entropy(torch.zeros(2, 5), torch.zeros(2), 10, world)


def whole_logits(world):
    targets = torch.zeros(2, dtype=torch.int64)
    vocab_cross_entropy(torch.zeros(2, 5, dtype=torch.int64), targets, 10, world)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (float_targets, r"targets are torch.float32.*pass targets.flatten\(\).long\(\)"),
        (whole_logits, r"logits are torch.int64.*pass logits.float\(\)"),
        (wrong_share, r"logits of shape \(13, 10\).*5 of 10 tokens.*pass \(13, 5\)"),
        (wrong_target, "target 10 is outside 0..9"),
    ],
)
def test_another_share_and_a_target_outside_are_refused(wrong, words):
    with pytest.raises(RankError, match=words):
        run(wrong, 2)
