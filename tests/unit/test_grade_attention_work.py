"""What the graders of attention count: FLOPs in products, exponentials, and how much is enough."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.grade.graders.attention_work import Needed, Work, total, work_of


class Counted(TorchDispatchMode):
    """Adds up the work of all operators inside."""

    def __init__(self):
        super().__init__()
        self.work = Work()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.work = total([self.work, work_of(func.overloadpacket.__name__, args) or Work()])
        return func(*args, **(kwargs or {}))


H, T, S, K = 2, 5, 7, 3
Q, KEYS, SCORES = torch.randn(H, T, K), torch.randn(H, S, K), torch.randn(H, T, S)
ROW, MATRIX = torch.randn(K), torch.randn(S, K)


@pytest.mark.parametrize(
    ("compute", "flops"),
    [
        (lambda: Q @ KEYS.mT, 2 * H * T * S * K),
        (lambda: torch.einsum("htk,hsk->hts", Q, KEYS), 2 * H * T * S * K),
        (lambda: torch.baddbmm(SCORES, Q, KEYS.mT), 2 * H * T * S * K),
        (lambda: SCORES.clone().baddbmm_(Q, KEYS.mT), 2 * H * T * S * K),
        (lambda: torch.addbmm(SCORES[0], Q, KEYS.mT), 2 * H * T * S * K),
        (lambda: Q[0] @ MATRIX.T, 2 * T * S * K),
        (lambda: torch.nn.functional.linear(Q[0], MATRIX, torch.zeros(S)), 2 * T * S * K),
        (lambda: MATRIX @ ROW, 2 * S * K),
        (lambda: torch.addmv(torch.zeros(S), MATRIX, ROW), 2 * S * K),
        (lambda: ROW @ ROW, 2 * K),
        (lambda: torch.vdot(ROW, ROW), 2 * K),
        (lambda: Q * Q + 1, 0),
    ],
)
def test_flops_of_products(compute, flops):
    with Counted() as counted:
        compute()
    assert counted.work == Work(flops)


@pytest.mark.parametrize(
    "compute",
    [
        lambda: torch.exp(SCORES),
        lambda: SCORES.clone().exp_(),
        lambda: torch.exp2(SCORES),
        lambda: 2**SCORES,
        lambda: torch.pow(torch.tensor(math.e), SCORES),
        lambda: torch.softmax(SCORES, 2),
        lambda: torch.log_softmax(SCORES, 2),
        lambda: torch.logsumexp(SCORES, 2),
    ],
)
def test_each_number_is_an_exponential(compute):
    with Counted() as counted:
        compute()
    assert counted.work == Work(0, SCORES.numel())


def test_a_square_is_no_exponential():
    with Counted() as counted:
        assert torch.is_tensor(SCORES**2) and torch.is_tensor(SCORES**-0.5)
    assert counted.work == Work()


def test_half_is_enough_and_less_is_not():
    needed = Needed(num_pairs=T * S, heads=H, features=K)
    with Counted() as counted:
        torch.exp(Q @ KEYS.mT) @ KEYS
    assert counted.work == Work(needed.flops, needed.exponentials)
    half = Work(needed.flops // 2, needed.exponentials // 2)
    assert needed.has_products(half) and needed.has_exponentials(half)
    less = Work(half.flops - 1, half.exponentials - 1)
    assert not needed.has_products(less) and not needed.has_exponentials(less)
