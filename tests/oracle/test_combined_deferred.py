"""Split backwards of tensor-parallel layers: I sends all there is to send, W adds the weights'."""

import torch

from labkit import run
from labkit.combined import CombinedTraining
from labkit.mesh import Mesh
from labkit.model import GPT, GPTConfig
from labkit.pipeline import zero_bubble_h1
from labkit.pipeline.deferred import WeightGradStore
from labkit.tensor_parallel import parallelize
from labkit.train import TrainConfig

CONFIG = GPTConfig(context=9, num_layers=2, hidden=24, num_heads=4, num_kv_heads=2, ffn=77)
SGD = TrainConfig(num_sequences=6, optimizer="sgd", dtype=torch.float64)
# Layers of each block that wait for W. The head does not: its weight is the embedding's, too.
WAITING = {"query", "key", "value", "out", "up", "down"}


def in_two_halves(world, sequence_parallel):
    """Return the layers that wait for W, the difference to one backward, and W's messages."""
    model = parallelize(
        GPT(CONFIG, dtype=torch.float64), world, sequence_parallel=sequence_parallel
    )
    batch = SGD.batches(None, CONFIG.context).at(0)
    model.loss(batch).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = None
    deferred = WeightGradStore()
    with deferred:
        loss = model.loss(batch)
    deferred.backward(loss)
    waiting = {name.split(".")[-2] for name, p in model.named_parameters() if p.grad is None}
    num_products = len(deferred.products)
    with world.region("W"):
        deferred.accumulate()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-12, atol=1e-15)
    return waiting, num_products


def posted_within(timeline, name):
    regions = [each for each in timeline.regions if each.name == name]
    assert regions
    return [
        op
        for op in timeline.operations
        if any(each.start_s <= op.posted_s <= each.end_s for each in regions)
    ]


def check_halves(num_ranks, sequence_parallel, waiting):
    result = run(in_two_halves, num_ranks, (sequence_parallel,))
    num_products = 2 * len(waiting) + 1
    assert result.values == [(waiting, num_products)] * num_ranks
    assert not any(posted_within(timeline, "W") for timeline in result.timeline)


def test_both_halves_are_the_whole_backward_and_w_sends_nothing():
    check_halves(2, False, WAITING)


def test_with_sequence_sharding_too_both_halves_are_the_whole_backward():
    check_halves(2, True, WAITING)


def test_copies_of_key_value_heads_do_not_wait_since_their_gradients_travel():
    check_halves(4, False, WAITING - {"key", "value"})


def zero_bubble(world):
    mesh = Mesh(world, tp=2, pp=2, dp=1)
    training = CombinedTraining(mesh, CONFIG, SGD, zero_bubble_h1, 3)
    training.step(SGD.batches(None, CONFIG.context).at(0))


def test_a_zero_bubble_pipeline_sends_nothing_during_w():
    for timeline in run(zero_bubble, 4).timeline:
        assert not posted_within(timeline, "weight gradients")
        assert posted_within(timeline, "input gradients")
