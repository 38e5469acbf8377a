"""SGD and AdamW against torch.optim's."""

import sys

import pytest
import torch

from labkit import run
from labkit.optimizer import SGD, AdamW
from labkit.train import TrainConfig


def parameters_after(make_optimizer, num_steps: int = 10) -> list[torch.Tensor]:
    """Three parameters after steps along gradients that differ wildly in size; the last never has
    one, the second only every other step."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (5,), (2,)]
    parameters = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]
    optimizer = make_optimizer(parameters)
    for step in range(num_steps):
        optimizer.zero_grad()
        for index, scale in enumerate([1.0, 1e-6]):
            grad = scale * torch.randn(shapes[index], generator=generator, dtype=torch.float64)
            if index == 0 or step % 2:
                parameters[index].grad = grad
        optimizer.step()
    return parameters


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torchs(momentum):
    expected = parameters_after(lambda p: torch.optim.SGD(p, lr=0.1, momentum=momentum))
    for ours, theirs in zip(
        parameters_after(lambda p: SGD(p, 0.1, momentum)), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adamw_equals_torchs(weight_decay):
    options = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": weight_decay}
    expected = parameters_after(lambda p: torch.optim.AdamW(p, lr=0.1, **options))
    for ours, theirs in zip(
        parameters_after(lambda p: AdamW(p, 0.1, **options)), expected, strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_sgd_without_momentum_keeps_nothing():
    parameter = torch.ones(3, requires_grad=True)
    optimizer = SGD([parameter], 0.1)
    parameter.grad = torch.ones(3)
    optimizer.step()
    assert optimizer.velocity == [None]


def test_adamw_keeps_two_tensors_per_parameter():
    parameter = torch.ones(3, requires_grad=True)
    optimizer = AdamW([parameter], 0.1)
    parameter.grad = torch.full((3,), 2.0)
    optimizer.step()
    state = optimizer.state[0]
    assert state is not None
    torch.testing.assert_close(state.mean, torch.full((3,), 0.1 * 2.0))
    torch.testing.assert_close(state.mean_square, torch.full((3,), 0.05 * 4.0))


@pytest.mark.parametrize("optimizer", [SGD, AdamW])
def test_zero_grad_forgets_the_gradients(optimizer):
    parameter = torch.ones(3, requires_grad=True)
    parameter.grad = torch.ones(3)
    optimizer([parameter], 0.1).zero_grad()
    assert parameter.grad is None


def modules_loaded_by_a_step(world, name: str) -> set[str]:
    before = set(sys.modules)
    parameter = torch.ones(3, requires_grad=True)
    parameter.grad = torch.ones(3)
    TrainConfig(optimizer=name).make_optimizer([parameter]).step()
    return {module for module in set(sys.modules) - before if module.startswith("torch")}


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_step_on_a_fresh_rank_does_not_load_the_compiler(name):
    assert "torch._dynamo" not in run(modules_loaded_by_a_step, 1, args=(name,)).values[0]


def one_parameter():
    return [torch.ones(3, requires_grad=True)]


NUMBERS = {
    "learning_rate": lambda x: AdamW(one_parameter(), x),
    "momentum": lambda x: SGD(one_parameter(), 0.1, momentum=x),
    "betas\\[0\\]": lambda x: AdamW(one_parameter(), 0.1, betas=(x, 0.9)),
    "betas\\[1\\]": lambda x: AdamW(one_parameter(), 0.1, betas=(0.9, x)),
    "eps": lambda x: AdamW(one_parameter(), 0.1, eps=x),
    "weight_decay": lambda x: AdamW(one_parameter(), 0.1, weight_decay=x),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_that_trains_nothing_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"^{name}=-1: "):
        NUMBERS[name](-1)


@pytest.mark.parametrize("parameters", [3, [], ["w"], torch.ones(2, requires_grad=True)])
def test_parameters_are_a_list_of_leaves(parameters):
    for optimizer in (SGD, AdamW):
        with pytest.raises(TypeError, match="module.parameters"):
            optimizer(parameters, 0.1)


def test_a_rate_of_zero_is_the_first_step_of_a_warmup():
    for optimizer in (SGD, AdamW):
        (w,) = one_parameter()
        w.grad = torch.ones(3)
        optimizer([w], 0).step()
        assert w.tolist() == [1, 1, 1]
