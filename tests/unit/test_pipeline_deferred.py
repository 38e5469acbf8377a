"""I, then W: together they are torch's backward, and W alone is put off."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.memory import Meter
from labkit.pipeline.deferred import WeightGradStore
from labkit.recompute import recompute


def model(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(5, 7, bias), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 3, bias)
    return nn.Sequential(*layers).double()


def split(module: nn.Module, x: torch.Tensor) -> WeightGradStore:
    deferred = WeightGradStore()
    with deferred:
        y = module(x)
    deferred.backward(y.square().sum())
    return deferred


@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 5), (1, 2, 3, 5), (0, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_both_halves_together_are_the_whole_backward(shape, bias):
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = model(bias)
    expected(x).square().sum().backward()
    grad_x, x.grad = x.grad, None
    module = model(bias)
    deferred = split(module, x)
    assert torch.allclose(x.grad, grad_x, rtol=1e-13, atol=0)
    deferred.accumulate()
    for mine, theirs in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-13, atol=1e-15)


def test_only_the_weights_of_linear_layers_are_deferred():
    module = model()
    deferred = split(module, torch.randn(4, 5, dtype=torch.float64))
    waiting = {name for name, p in module.named_parameters() if p.grad is None}
    assert waiting == {"0.weight", "0.bias", "3.weight", "3.bias"}
    deferred.accumulate()
    assert all(p.grad is not None for p in module.parameters())


def test_a_second_w_adds_nothing_and_two_microbatches_add_up():
    module, x = model(), torch.randn(4, 5, dtype=torch.float64)
    deferred = split(module, x)
    deferred.accumulate()
    once = [p.grad.clone() for p in module.parameters()]
    deferred.accumulate()
    assert all(torch.equal(p.grad, grad) for p, grad in zip(module.parameters(), once))
    split(module, x).accumulate()
    for p, grad in zip(module.parameters(), once):
        assert torch.allclose(p.grad, 2 * grad)


def test_a_computed_weight_gets_its_gradient_in_i():
    weight = torch.randn(3, 5, requires_grad=True)
    deferred = WeightGradStore()
    with deferred:
        y = F.linear(torch.randn(2, 5), weight * 2)
    deferred.backward(y.sum())
    assert weight.grad is not None


def test_a_weight_used_twice_gets_both_parts():
    layer, x = nn.Linear(5, 5).double(), torch.randn(2, 5, dtype=torch.float64)
    layer(layer(x)).sum().backward()
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    deferred = WeightGradStore()
    with deferred:
        y = layer(layer(x))
    deferred.backward(y.sum())
    deferred.accumulate()
    assert torch.allclose(layer.weight.grad, expected)


def test_autocast_gives_gradients_of_the_parameters_own_dtype():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    deferred = WeightGradStore()
    with torch.autocast("cpu", torch.bfloat16), deferred:
        y = layer(x)
    assert y.dtype == torch.bfloat16
    deferred.backward(y.float().square().sum())
    deferred.accumulate()
    assert x.grad.dtype == layer.weight.grad.dtype == torch.float32
    low = layer.weight.grad
    layer.zero_grad()
    layer(x).square().sum().backward()
    assert torch.allclose(low, layer.weight.grad, rtol=0.1, atol=0.1)


def test_without_gradients_nothing_is_kept():
    layer = nn.Linear(5, 5)
    deferred = WeightGradStore()
    with torch.no_grad(), deferred:
        layer(torch.randn(2, 5))
    deferred.accumulate()
    assert layer.weight.grad is None


def test_second_derivatives_are_refused():
    x = torch.randn(2, 5, requires_grad=True)
    deferred = WeightGradStore()
    with deferred:
        y = nn.Linear(5, 5)(x)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_hooks_on_saved_tensors_do_not_change_weight_gradients():
    x = torch.randn(4, 5, dtype=torch.float64)
    expected = model()
    expected(x).square().sum().backward()
    module = model()
    with Meter(module):
        split(module, x).accumulate()
    for mine, theirs in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad)


def test_a_recomputed_block_defers_the_same_weights():
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    expected, module = model(), model()
    expected(x).square().sum().backward()
    grad_x, x.grad = x.grad, None
    deferred = split(lambda x: recompute(module, x), x)
    assert module[0].weight.grad is None
    deferred.accumulate()
    assert torch.allclose(x.grad, grad_x)
    for mine, theirs in zip(module.parameters(), expected.parameters(), strict=True):
        assert torch.allclose(mine.grad, theirs.grad)


def test_a_gradient_taken_within_the_forward_pass_counts_once():
    def stage(layer, x):
        (slope,) = torch.autograd.grad(layer(x).sum(), x)
        return layer(x) * slope

    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    expected = torch.nn.Linear(5, 5, False).double()
    layer = copy.deepcopy(expected)
    stage(expected, x).sum().backward()
    split_sum = WeightGradStore()
    with split_sum:
        y = stage(layer, x)
    split_sum.backward(y.sum())
    split_sum.accumulate()
    assert torch.allclose(layer.weight.grad, expected.weight.grad)


@pytest.mark.parametrize("shapes", [((5,), (3, 5)), ((2, 5), (5,))])
def test_products_with_vectors_are_not_deferred(shapes):
    x, weight = (torch.randn(shape, requires_grad=True) for shape in shapes)
    deferred = WeightGradStore()
    with deferred:
        y = F.linear(x, weight)
    deferred.backward(y.sum())
    expected = torch.autograd.grad(F.linear(x, weight).sum(), weight)[0]
    assert torch.allclose(weight.grad, expected)
