"""recompute: the same values and gradients, to the bit, for fewer bytes and one more forward."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from labkit import calc
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.recompute import recompute


class Recomputed(nn.Module):
    """A block that is computed again in backward; as a rung of a ladder, and not a flag of GPT."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return recompute(self.block, x)


def in_full(gpt):
    gpt = copy.deepcopy(gpt)
    gpt.blocks = nn.ModuleList(Recomputed(block) for block in gpt.blocks)
    return gpt


def selectively(gpt):
    gpt = copy.deepcopy(gpt)
    for block in gpt.blocks:
        block.mlp = Recomputed(block.mlp)
    return gpt


CONFIG = GPTConfig(num_layers=4, hidden=128, num_heads=4, context=128)
TOKENS = torch.randint(0, 256, (4, 128))


def loss_of(gpt):
    return F.cross_entropy(gpt(TOKENS).flatten(0, 1), TOKENS.flatten())


def gradients(gpt):
    return [p.grad for p in gpt.parameters()]


def all_equal(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("rung", [in_full, selectively])
def test_loss_and_gradients_are_the_same_to_the_bit(rung):
    plain = GPT(CONFIG)
    again = rung(plain)
    losses = [loss_of(gpt) for gpt in (plain, again)]
    for loss in losses:
        loss.backward()
    assert torch.equal(*losses)
    assert all_equal(gradients(plain), gradients(again))


def test_dropout_drops_the_same_and_draws_nothing_from_the_callers_numbers():
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8))
    x, results, following = torch.randn(4, 8), [], []
    for call in (lambda: net(x), lambda: recompute(net, x)):
        torch.manual_seed(1)
        net.zero_grad()
        y = call()
        torch.rand(3)  # as other layers would
        y.sum().backward()
        results.append([y, *(p.grad.clone() for p in net.parameters())])
        following.append(torch.rand(3))
    assert all_equal(*results)
    assert torch.equal(*following)


def activations(gpt, *, backward=True):
    with Meter(gpt) as meter:
        loss = loss_of(gpt)
        if backward:
            loss.backward()
        return meter.usage


def of_calc(recompute):
    config = calc.ModelConfig(layers=4, hidden=128, heads=4, vocab=256, context=128, biases=False)
    layers = calc.activation_bytes(
        config, 4, itemsize=4, flash=True, dropout=False, recompute=recompute
    )
    tail = 2 * TOKENS.numel() * 128 * 4 + float(calc.logits_bytes(config, 4, itemsize=4)) / 2
    return float(layers), tail


def test_forward_keeps_each_blocks_input_and_the_calculator_agrees_within_3_percent():
    for recomputes, rung in (("none", copy.deepcopy), ("full", in_full)):
        kept = activations(rung(GPT(CONFIG)), backward=False).at_end["activations"]
        layers, tail = of_calc(recomputes)
        assert kept == pytest.approx(layers + tail, rel=0.03), recomputes


def test_in_backward_one_block_at_a_time_is_there_again():
    peak = activations(in_full(GPT(CONFIG))).peak_of("activations")
    inputs, tail = of_calc("full")
    one_block = of_calc("none")[0] / 4
    assert inputs + tail < peak < inputs + 1.03 * (one_block + tail)
    assert peak < 0.45 * activations(GPT(CONFIG)).peak_of("activations")


def test_what_is_there_again_goes_one_by_one_as_backward_uses_it():
    nbytes, live = 4 * 2**16, []

    def block(x):
        h = x.sin()
        h.register_hook(lambda _: live.append(meter.live_bytes))
        return h.sin().sin().sin()

    with Meter() as meter:
        x = torch.ones(2**16, requires_grad=True)
        recompute(block, x).sum().backward()
    # Its input, and gradients: of what was saved after it nothing.
    assert live[0] <= 3 * nbytes


def test_selective_recomputation_lies_between():
    full, some, none = (
        activations(rung(GPT(CONFIG)), backward=False).at_end["activations"]
        for rung in (in_full, selectively, copy.deepcopy)
    )
    assert full < some < none


def operations(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def test_it_costs_one_more_forward_but_for_what_comes_after_the_last_saved_tensor():
    plain, features = GPT(CONFIG), torch.randn(4, 128, 128)
    step, block = operations(lambda: loss_of(plain).backward()), plain.blocks[0]
    last_product = operations(lambda: block.mlp.down(torch.randn(4, 128, 512)))
    for rung, wrapped in ((in_full, block), (selectively, block.mlp)):
        again = rung(plain)
        extra = operations(lambda again=again: loss_of(again).backward()) - step
        forward = operations(lambda wrapped=wrapped: wrapped(features))
        assert extra == 4 * (forward - last_product)


def test_blocks_within_blocks_and_several_arguments_and_results():
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)

    def inner(x, scale):
        return torch.tanh(first(x)) * scale

    def outer(x, *, scale, shift):
        y = recompute(inner, x, scale)
        return second(y) + shift, y

    x = torch.randn(3, 6, requires_grad=True)
    shift = torch.randn(6, requires_grad=True)
    leaves = [x, shift, *first.parameters(), *second.parameters()]
    results = []
    for call in (outer, lambda *a, **k: recompute(outer, *a, **k)):
        y, z = call(x, scale=2.0, shift=shift)
        results.append(torch.autograd.grad((y.sin() + z).sum(), leaves))
    assert all_equal(*results)


def test_a_block_whose_inputs_need_no_gradient_still_trains():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    recompute(lambda x: torch.tanh(layer(x)), x).sum().backward()
    assert layer.weight.grad is not None


def test_backward_may_pass_twice():
    layer, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    y = recompute(lambda x: torch.tanh(layer(x)), x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    (second,) = torch.autograd.grad(y, x)
    assert torch.equal(first, second)


def test_without_gradients_nothing_is_kept():
    layer = nn.Linear(2**9, 2**9)
    x = torch.ones(2**9, 2**9)
    with Meter(layer) as meter, torch.no_grad():
        y = recompute(layer, x)
        assert meter.usage.at_end["activations"] == 0
    assert not y.requires_grad


def test_autocast_is_as_it_was_although_backward_stands_outside_of_it():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    results = []
    for call in (lambda x: torch.tanh(layer(x)), lambda x: recompute(lambda x: layer(x).tanh(), x)):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            y = call(x)
        y.float().sum().backward()
        results.append([layer.weight.grad.clone(), layer.bias.grad.clone()])
    assert all_equal(*results)


def test_an_argument_that_was_changed_in_place_is_an_error():
    x = torch.randn(4, requires_grad=True)
    y = x * 1
    z = recompute(lambda y: y.sin(), y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_a_block_that_does_something_else_the_second_time_is_an_error_that_says_what():
    calls = []

    def fickle(x):
        calls.append(1)
        return x.sin() if len(calls) == 1 else x.sin().cos().sum(0)

    def shrinks(x):
        calls.append(1)
        return (x if len(calls) == 1 else x[:2]).sin()

    def widens(x):
        calls.append(1)
        return (x if len(calls) == 1 else x.double()).sin()

    x = torch.randn(4, requires_grad=True)
    z = recompute(shrinks, x)
    with pytest.raises(RuntimeError, match=r"a tensor of \(2,\) .* the first pass saved \(4,\)"):
        z.sum().backward()
    calls.clear()
    z = recompute(widens, x)
    with pytest.raises(RuntimeError, match=r"\(4,\) torch.float64 .* saved \(4,\) torch.float32"):
        z.sum().backward()
    calls.clear()
    z = recompute(lambda x: fickle(x) if not calls else x + 1, x)
    with pytest.raises(RuntimeError, match="saved 0 tensors, where the first pass saved 1"):
        z.sum().backward()


def test_handlers_in_the_block_do_not_notice_that_it_is_not_run_to_its_end():
    def handles(x):
        try:
            return x.sin().cos()
        except Exception:
            return x.exp().sin().cos()

    def translates(x):
        try:
            return x.sin().cos()
        except BaseException as error:
            raise ValueError("something went wrong") from error

    x = torch.randn(4, requires_grad=True)
    (plain,) = torch.autograd.grad(x.sin().cos().sum(), x)
    for block in (handles, translates):
        (again,) = torch.autograd.grad(recompute(block, x).sum(), x)
        assert torch.equal(again, plain)


def test_an_error_of_the_blocks_own_comes_through():
    calls = []

    def fails_the_second_time(x):
        calls.append(1)
        y = x.sin()
        if len(calls) == 2:
            raise ZeroDivisionError("its own")
        return y.cos()

    z = recompute(fails_the_second_time, torch.randn(4, requires_grad=True))
    with pytest.raises(ZeroDivisionError, match="its own"):
        z.sum().backward()
