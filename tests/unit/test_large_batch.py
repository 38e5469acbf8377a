"""Large batches: LARS and LAMB against their papers' update, worked out by hand."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.large_batch import LAMB, LARS, scaled_learning_rate, warmed_up


def parameter(values, gradient):
    made = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    made.grad = torch.tensor(gradient, dtype=torch.float64)
    return made


def test_lars_on_a_vector_by_hand():
    # |w| = 5, |g| = 10, weight decay 0.1: local = 0.01 * 5 / (10 + 0.5) = 1/210.
    w = parameter([3.0, 4.0], [6.0, 8.0])
    optimizer = LARS([w], learning_rate=2.0, momentum=0.5, weight_decay=0.1, trust=0.01)
    optimizer.step()
    v = [2.0 / 210 * 6.3, 2.0 / 210 * 8.4]
    assert w.tolist() == pytest.approx([3 - v[0], 4 - v[1]], rel=1e-14)
    before = w.tolist()
    w.grad = torch.tensor([0.0, 1.0], dtype=torch.float64)
    optimizer.step()
    size = math.hypot(*before)
    local = 0.01 * size / (1 + 0.1 * size)
    again = [
        0.5 * v[0] + 2 * local * 0.1 * before[0],
        0.5 * v[1] + 2 * local * (1 + 0.1 * before[1]),
    ]
    assert w.tolist() == pytest.approx([before[0] - again[0], before[1] - again[1]], rel=1e-14)


def test_lars_moves_a_layer_by_its_own_size_however_large_the_gradient():
    moved = []
    for factor in (1.0, 1e6):
        w = parameter([3.0, 4.0], [6.0 * factor, 8.0 * factor])
        LARS([w], learning_rate=1.0, weight_decay=0.0, trust=1e-3).step()
        moved.append((torch.tensor([3.0, 4.0]) - w.detach()).norm().item())
    assert moved == pytest.approx([5e-3, 5e-3], rel=1e-9)


def test_lamb_on_a_vector_by_hand():
    # After one step m' = g and v' = g * g, so u = sign(g) + 0.1 w = (1.3, -0.6).
    w = parameter([3.0, 4.0], [2.0, -7.0])
    LAMB([w], learning_rate=0.01, betas=(0.9, 0.999), eps=0.0, weight_decay=0.1).step()
    u = [1.3, -0.6]
    ratio = 5 / math.hypot(*u)
    assert w.tolist() == pytest.approx(
        [3 - 0.01 * ratio * u[0], 4 - 0.01 * ratio * u[1]], rel=1e-12
    )


def test_lamb_on_its_second_step_by_hand():
    w = parameter([1.0], [1.0])
    optimizer = LAMB([w], learning_rate=0.1, betas=(0.5, 0.5), eps=0.0, weight_decay=0.0)
    optimizer.step()  # u = 1, ratio = 1: w = 0.9
    assert w.item() == pytest.approx(0.9)
    w.grad = torch.tensor([3.0], dtype=torch.float64)
    optimizer.step()
    # m = 0.5 * 0.5 + 0.5 * 3 = 1.75 and v = 0.5 * 0.5 + 0.5 * 9 = 4.75, both over 1 - 0.5**2.
    mean, mean_square = 1.75 / 0.75, 4.75 / 0.75
    u = mean / math.sqrt(mean_square)
    assert w.item() == pytest.approx(0.9 - 0.1 * (0.9 / u) * u)


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_a_layer_of_zeros_still_moves(optimizer):
    w = parameter([0.0, 0.0], [1.0, -1.0])
    optimizer([w], 0.1).step()
    assert w[0] < 0 < w[1]


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_without_a_gradient_nothing_moves(optimizer):
    w = torch.ones(2, requires_grad=True)
    optimizer([w], 0.1).step()
    assert w.tolist() == [1, 1]


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
@pytest.mark.parametrize("gradient", [[math.inf, 1.0], [math.nan, 1.0]])
def test_an_overflow_in_one_layer_does_not_reach_another(optimizer, gradient):
    w, bad = parameter([3.0, 4.0], [6.0, 8.0]), parameter([3.0, 4.0], gradient)
    optimizer([bad, w], 0.1).step()
    alone = parameter([3.0, 4.0], [6.0, 8.0])
    optimizer([alone], 0.1).step()
    assert torch.equal(w, alone)


def test_a_trust_of_nothing_moves_nothing():
    w = parameter([3.0, 4.0], [6.0, 8.0])
    LARS([w], 1.0, trust=0.0).step()
    assert w.tolist() == [3.0, 4.0]


class NumbersRead(TorchDispatchMode):
    """Counts what makes the host wait for a GPU: a tensor read as a number."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("optimizer", [LARS, LAMB])
def test_a_step_reads_no_number_back(optimizer):
    made = optimizer([parameter([3.0, 4.0], [6.0, 8.0]) for _ in range(3)], 0.1)
    with NumbersRead() as read:
        made.step()
    assert read.count == 0


def test_a_norm_that_half_precision_cannot_hold_is_none_the_less_right():
    w = torch.full((10_000,), 1000.0, dtype=torch.float16)  # |w| = 1e5, and 65,504 is the largest
    w.grad = torch.ones_like(w)
    LARS([w], learning_rate=1.0, weight_decay=0.0, trust=0.01).step()  # 0.01 * 1e5 / 100 = 10
    assert w[0] == 990


def test_the_learning_rate_grows_with_the_batch():
    assert scaled_learning_rate(0.1, batch=8192, base_batch=256) == pytest.approx(3.2)


def test_warmup_is_a_straight_line_and_then_over():
    rates = [warmed_up(1.0, step, warmup_steps=4, start=0.2) for step in range(6)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert warmed_up(1.0, step=0, warmup_steps=0) == 1.0


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda ps, x: LARS(ps, x), "learning_rate"),
        (lambda ps, x: LARS(ps, 0.1, momentum=x), "momentum"),
        (lambda ps, x: LARS(ps, 0.1, trust=x), "trust"),
        (lambda ps, x: LARS(ps, 0.1, weight_decay=x), "weight_decay"),
        (lambda ps, x: LAMB(ps, x), "learning_rate"),
        (lambda ps, x: LAMB(ps, 0.1, eps=x), "eps"),
    ],
)
def test_a_number_that_trains_nothing_is_refused_by_name(make, name):
    with pytest.raises(ValueError, match=f"^{name}=-1: "):
        make([parameter([1.0], [1.0])], -1)
