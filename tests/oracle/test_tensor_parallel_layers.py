"""Layers that are cut over the ranks, against the whole layer in one process, in float64.

Tolerance: sums over at most 64 numbers of size 1, taken in another order: 64 eps, with room.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import RankError, run
from labkit.model import MLP, Attention, GPTConfig
from labkit.tensor_parallel import (
    LIBRARY,
    RING,
    SHARED_MEMORY,
    ColumnLinear,
    ParallelAttention,
    ParallelMLP,
    Replicated,
    RowLinear,
    SequenceSharded,
    column_linear,
    enter_parallel_region,
    gather_features,
    gather_full_gradients,
    gather_full_state,
    leave_parallel_region,
    plain,
    row_linear,
    share_features,
    summed_over,
    vocab_cross_entropy,
)

BACKENDS = {"library": LIBRARY, "ring": RING, "shared memory": SHARED_MEMORY}
B, T, D, F_ = 3, 5, 6, 7  # 15 tokens and 7 features: 2, 3 and 4 divide not both
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def drawn(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def two_layers():
    """up and down, with biases, the same on every rank."""
    torch.manual_seed(1)
    return nn.Linear(D, F_).double(), nn.Linear(F_, D).double()


def serial_pair():
    up, down = two_layers()
    x = drawn(0, B, T, D).requires_grad_()
    z = down(F.gelu(up(x)))
    (z * drawn(9, B, T, D)).sum().backward()
    return z, x, up, down


def a_pair_of_layers(world):
    up, down = two_layers()
    model = nn.Sequential(ColumnLinear(up, world), nn.GELU(), RowLinear(down, world))
    x = drawn(0, B, T, D).requires_grad_()
    z = model(x)
    (z * drawn(9, B, T, D)).sum().backward()
    expected_z, expected_x, up, down = serial_pair()
    torch.testing.assert_close(z, expected_z, **CLOSE)
    torch.testing.assert_close(x.grad, expected_x.grad, **CLOSE)
    gradients = gather_full_gradients(model, world)
    expected = {f"0.{name}": p.grad for name, p in up.named_parameters()}
    expected |= {f"2.{name}": p.grad for name, p in down.named_parameters()}
    torch.testing.assert_close(gradients, expected, **CLOSE)
    plainly(world, expected_z, expected_x, up, down)
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def plainly(world, expected_z, expected_x, expected_up, expected_down):
    """The plain rung on the same two layers."""
    up, down = two_layers()
    shards = [
        each.detach().tensor_split(world.size, dim)[world.rank].clone().requires_grad_()
        for each, dim in ((up.weight, 0), (up.bias, 0), (down.weight, 1))
    ]
    x = drawn(0, B, T, D).requires_grad_()
    z = plain.column_row_mlp(x, *shards, down.bias, world)
    (z * drawn(9, B, T, D)).sum().backward()
    expected = [
        each.grad.tensor_split(world.size, dim)[world.rank]
        for each, dim in ((expected_up.weight, 0), (expected_up.bias, 0), (expected_down.weight, 1))
    ]
    torch.testing.assert_close(z, expected_z, **CLOSE)
    torch.testing.assert_close(x.grad, expected_x.grad, **CLOSE)
    torch.testing.assert_close(down.bias.grad, expected_down.bias.grad, **CLOSE)
    torch.testing.assert_close([each.grad for each in shards], expected, **CLOSE)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_a_column_and_a_row_layer_are_the_two_layers_with_biases_and_gradients(world_size):
    shapes = run(a_pair_of_layers, world_size).values
    assert sum(shape["0.weight"][0] for shape in shapes) == F_
    assert all(shape["2.bias"] == (D,) for shape in shapes)


def test_the_first_features_go_to_the_first_ranks_one_more_each():
    shapes = run(a_pair_of_layers, 4).values
    assert [shape["0.weight"] for shape in shapes] == [(2, D), (2, D), (2, D), (1, D)]
    assert [shape["2.weight"] for shape in shapes] == [(D, 2), (D, 2), (D, 2), (D, 1)]


def fused(world, form, backend):
    """The same by the fused functions, between layers in either layout; without biases."""
    up, down = two_layers()
    backend = BACKENDS[backend]
    layout = {
        "replicated": Replicated(world, backend),
        "sequence-sharded": SequenceSharded(world, B, T, backend),
    }[form]
    shares = [ColumnLinear(up, world).weight, RowLinear(down, world).weight]
    x = drawn(0, B, T, D)
    mine = x if form == "replicated" else _rows(x, layout)
    mine.requires_grad_()
    (y,) = column_linear(mine, layout, shares[0])
    z = row_linear(F.gelu(y), layout, shares[1])
    weights = drawn(9, B, T, D)
    (z * (weights if form == "replicated" else _rows(weights, layout))).sum().backward()

    whole = drawn(0, B, T, D).requires_grad_()
    expected = F.gelu(whole @ up.weight.T) @ down.weight.T
    (expected * weights).sum().backward()
    pick = (lambda each: each) if form == "replicated" else (lambda each: _rows(each, layout))
    torch.testing.assert_close(z, pick(expected.detach()), **CLOSE)
    torch.testing.assert_close(mine.grad, pick(whole.grad), **CLOSE)
    for share, layer, dim in zip(shares, (up, down), (0, 1), strict=True):
        part = layer.weight.grad.tensor_split(world.size, dim)[world.rank]
        torch.testing.assert_close(share.grad, part, **CLOSE)


def _rows(x_BTD, layout):
    """This rank's rows, filled up with zeros."""
    rows = x_BTD.flatten(0, 1)[layout.rows.start : layout.rows.stop]
    return F.pad(rows, (0, 0, 0, layout.num_rows - len(rows)))


@pytest.mark.parametrize(
    ("world_size", "backend"),
    [(1, "ring"), (2, "ring"), *((3, each) for each in BACKENDS), (4, "ring")],
)
@pytest.mark.parametrize("form", ["replicated", "sequence-sharded"])
def test_fused_layers_are_the_same_in_both_forms_on_every_backend(world_size, form, backend):
    run(fused, world_size, (form, backend))


def adjoint(world):
    """<A x, y> and <x, A' y>, summed over the ranks, for both ends of a parallel region."""
    layout = SequenceSharded(world, B, T)
    inside, outside = (B, T, D), (layout.num_rows, D)
    found = []
    for function, source, target in (
        (enter_parallel_region, outside, inside),
        (leave_parallel_region, inside, outside),
    ):
        x = drawn(world.rank, *source)
        if function is enter_parallel_region:  # rows of padding are zero
            x[len(layout.rows) :] = 0
        x.requires_grad_()
        y = drawn(100 + world.rank, *target)
        result = function(x, layout)
        result.backward(y)
        products = torch.stack([(result.detach() * y).sum(), (x.detach() * x.grad).sum()])
        found.append(world.all_reduce(products).tolist())
    return found


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_entering_and_leaving_a_sequence_sharded_layout_are_adjoint(world_size):
    for forward, backward in run(adjoint, world_size).values[0]:
        assert forward == pytest.approx(backward, rel=1e-12)


def one_loss(world):
    """Replicated features are one tensor that all hold: a loss of theirs is counted once."""
    layout = Replicated(world)
    x = drawn(0, B, T, D).requires_grad_()
    share = drawn(1 + world.rank, D)
    leave_parallel_region(enter_parallel_region(x, layout) * share, layout).sum().backward()
    total = sum(drawn(1 + rank, D) for rank in range(world.size))
    torch.testing.assert_close(x.grad, total.expand(B, T, D), **CLOSE)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_loss_that_all_ranks_hold_is_counted_once(world_size):
    run(one_loss, world_size)


def not_mine(world):
    """A caller's tensors are as before, also where nothing but the sum is computed."""
    x = drawn(world.rank, B, T, D)
    before = x.clone()
    leave_parallel_region(x, Replicated(world))
    leave_parallel_region(x, SequenceSharded(world, B, T))
    y = x.clone().requires_grad_()
    gradient = drawn(3, B, T, D)
    entered = enter_parallel_region(y, Replicated(world))
    entered.backward(gradient)
    torch.testing.assert_close(gradient, drawn(3, B, T, D), rtol=0, atol=0)
    torch.testing.assert_close(x, before, rtol=0, atol=0)


def test_arguments_and_gradients_are_not_changed():
    run(not_mine, 2)


CONFIGS = {
    "as many kv heads": GPTConfig(hidden=24, num_heads=12, ffn=7),
    "fewer than heads": GPTConfig(hidden=24, num_heads=12, num_kv_heads=4, ffn=1),
    "one for all": GPTConfig(hidden=24, num_heads=12, num_kv_heads=1, ffn=5),
}


def block_halves(world, name):
    config = CONFIGS[name]
    for whole_class, parallel_class in ((Attention, ParallelAttention), (MLP, ParallelMLP)):
        torch.manual_seed(2)
        whole = whole_class(config).double()
        x = drawn(0, 2, 5, 24).requires_grad_()
        expected = whole(x)
        (expected * drawn(9, 2, 5, 24)).sum().backward()
        parallel = parallel_class(whole, world)
        again = drawn(0, 2, 5, 24).requires_grad_()
        found = parallel(again)
        (found * drawn(9, 2, 5, 24)).sum().backward()
        torch.testing.assert_close(found, expected, **CLOSE)
        torch.testing.assert_close(again.grad, x.grad, **CLOSE)
        gradients = gather_full_gradients(parallel)
        expected_gradients = {n: p.grad for n, p in whole.named_parameters()}
        torch.testing.assert_close(gradients, expected_gradients, **CLOSE)
        torch.testing.assert_close(gather_full_state(parallel), whole.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_attention_and_mlp_equal_the_whole_ones_with_shared_kv_heads(world_size, name):
    if CONFIGS[name].kv_heads == 4 and world_size == 3:
        with pytest.raises(RankError, match="3 ranks cannot share 12 heads with 4 key-value heads"):
            run(block_halves, world_size, (name,))
    else:
        run(block_halves, world_size, (name,))


def features(world):
    """Cut and put together again, with a loss that all ranks hold."""
    x = drawn(0, 2, 3, 7).requires_grad_()
    mine = share_features(x, world)
    whole = gather_features(mine * 2, 7, world)
    (whole * drawn(1, 2, 3, 7)).sum().backward()
    torch.testing.assert_close(whole.detach(), 2 * x.detach(), **CLOSE)
    torch.testing.assert_close(x.grad, 2 * drawn(1, 2, 3, 7), **CLOSE)
    return mine.shape[-1]


def test_features_are_sharded_like_tensor_split_and_gathered_with_their_gradients():
    assert run(features, 4).values == [2, 2, 2, 1]


def other_tokens(world):
    leave_parallel_region(torch.zeros(2, 5, 2), SequenceSharded(world, 2, 3))


def other_shards(world):
    enter_parallel_region(torch.zeros(5, 2), SequenceSharded(world, 2, 3))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (other_tokens, r"partial sums of shape \(2, 5, 2\).*2 x 3 tokens; give \(2, 3, D\)"),
        (
            other_shards,
            r"sequence-sharded features of shape \(5, 2\).*are 2 rows each; give \(2, D\)",
        ),
    ],
)
def test_tokens_of_another_batch_are_refused_and_not_cut(wrong, words):
    with pytest.raises(RankError, match=words):
        run(wrong, 4)


def other_features(world):
    gather_features(torch.zeros(2, 3), 8, world)


def test_features_of_another_number_are_refused():
    with pytest.raises(RankError, match="has 4 of 8 features, but y has 3"):
        run(other_features, 2)


def copies_of_kv_heads(world):
    torch.manual_seed(2)
    attention = ParallelAttention(Attention(CONFIGS["one for all"]).double(), world)
    attention(drawn(0, 2, 5, 24)).sum().backward()
    return attention.key.weight, attention.key.weight.grad


def test_copies_of_a_key_value_head_have_one_gradient():
    (first, gradient), *others = run(copies_of_kv_heads, 4).values
    for weight, its_gradient in others:
        assert torch.equal(weight, first) and torch.equal(its_gradient, gradient)


def parts_of_gradients(world):
    """Used twice, by two backward passes; one of them without the second parameter."""
    a, b = (nn.Parameter(drawn(seed, 4)) for seed in (1, 2))
    for uses_b in (True, False):
        one, two = summed_over(world, a, b)
        loss = (one * (world.rank + 1)).sum()
        (loss + (two * 10**world.rank).sum() if uses_b else loss).backward()
    return a.grad, b.grad


@pytest.mark.parametrize("world_size", [1, 3])
def test_gradients_of_shared_parameters_are_added_up_in_each_backward(world_size):
    ranks = range(world_size)
    for a, b in run(parts_of_gradients, world_size).values:
        assert a.tolist() == [2 * sum(rank + 1 for rank in ranks)] * 4
        assert b.tolist() == [sum(10**rank for rank in ranks)] * 4


COMMUNICATING = {
    "column_linear": lambda x, world: column_linear(x, Replicated(world), x * 2)[0],
    "row_linear": lambda x, world: row_linear(x, Replicated(world), x * 2),
    "enter_parallel_region": lambda x, world: enter_parallel_region(x, Replicated(world)),
    "leave_parallel_region": lambda x, world: leave_parallel_region(x, Replicated(world)),
    "share": lambda x, world: share_features(x, world),
    "gather": lambda x, world: gather_features(x, 3 * world.size, world),
    "summed_over": lambda x, world: summed_over(world, x)[0],
    "vocab_cross_entropy": lambda x, world: vocab_cross_entropy(
        x, torch.zeros(2, dtype=torch.int64), 3 * world.size, world
    ),
}


def second_derivatives(world, name):
    x = drawn(0, 2, 3).requires_grad_()
    y = COMMUNICATING[name](x, world)
    torch.autograd.grad((y**2).sum(), x, create_graph=True)


@pytest.mark.parametrize("name", COMMUNICATING)
def test_a_second_derivative_is_refused(name):
    with pytest.raises(RankError, match=f"create_graph=True: the gradients of {name}"):
        run(second_derivatives, 2, (name,))


def some_frozen(world):
    """Parameters that need no gradient get none, and nothing is sent for them."""
    up, down = two_layers()
    up.weight.requires_grad_(False)
    shares = [ColumnLinear(up, world).weight, RowLinear(down, world).weight]
    layout = Replicated(world)
    x = drawn(0, B, T, D)
    (y,) = column_linear(x, layout, shares[0])
    row_linear(y, layout, shares[1]).sum().backward()
    return shares[0].grad is None, shares[1].grad is not None


def only_one_gradient(world, of_x):
    """A sequence-sharded column layer, of which x or the weight needs a gradient."""
    up, _ = two_layers()
    layout = SequenceSharded(world, B, T, LIBRARY)
    weight = ColumnLinear(up, world).weight.requires_grad_(not of_x)
    x = _rows(drawn(0, B, T, D), layout).requires_grad_(of_x)
    (y,) = column_linear(x, layout, weight)
    with world.region("backward"):
        y.sum().backward()


@pytest.mark.parametrize(("of_x", "kind"), [(True, "reduce_scatter"), (False, "all_gather")])
def test_only_what_a_gradient_needs_is_sent_in_backward(of_x, kind):
    timeline = run(only_one_gradient, 2, (of_x,)).timeline[0]
    began_s = timeline.regions[0].start_s
    assert [op.kind for op in timeline.operations if op.posted_s >= began_s] == [kind]


def test_frozen_weights_and_inputs_without_gradients_send_nothing_back():
    result = run(some_frozen, 2)
    assert result.values == [(True, True)] * 2
    assert result.traffic[0].by_operation["all_reduce"].count == 1
