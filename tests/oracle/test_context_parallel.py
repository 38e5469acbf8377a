"""Attention over a cut sequence against torch's on the whole one: values and all gradients.

In float64, where another order of adding shows in the last digits only. Sizes 1 to 4, lengths that
do not divide and some that are shorter than the group, one longer than a tile of scores.
"""

import functools

import pytest
import torch
from torch.nn import functional as F

from labkit import run
from labkit.context_parallel import (
    contiguous,
    gathered_attention,
    plain,
    ring_attention,
    shard_sequence,
    ulysses_attention,
    zigzag,
)
from labkit.recompute import recompute

STRATEGIES = {
    "ring": ring_attention,
    "ulysses": ulysses_attention,
    "gathered": gathered_attention,
}
PLACEMENTS = {"contiguous": contiguous, "zigzag": zigzag}
# name -> (tokens, heads of queries, heads of keys, causal, scale of queries). 12 heads for Ulysses,
# which needs as many heads of keys as ranks.
CASES = {
    "causal": (13, 12, 12, True, 1),
    "no mask": (13, 12, 12, False, 1),
    "grouped heads": (10, 24, 12, True, 1),
    "fewer tokens than ranks": (3, 12, 12, True, 1),
    "fewer tokens than ranks, no mask": (2, 12, 12, False, 1),
    "no token": (0, 12, 12, True, 1),
    "scores of thousands": (9, 12, 12, True, 3000),
}
FOR_RINGS = {
    "three heads on one": (11, 3, 1, True, 1),
    "five heads": (11, 5, 5, True, 1),
    "more than a tile": (550, 2, 1, True, 1),
    "more than a tile, no mask": (550, 2, 1, False, 1),
}
ALL = CASES | FOR_RINGS
# Two ranks have every case: of 550 tokens each has more than a tile, and both placements differ.
OF_SIZE = {
    1: ["causal", "no token", "more than a tile"],
    2: list(ALL),
    3: ["causal", "no mask", "grouped heads", "five heads"],
    4: ["causal", "no mask", "fewer tokens than ranks", "fewer tokens than ranks, no mask"],
}
NAMES = "out", "gradient of q", "gradient of k", "gradient of v"


def inputs(case, dtype=torch.float64):
    """q, k, v of the whole sequence, and the gradient of the output."""
    num_tokens, H, G, _, scale = ALL[case]
    generator = torch.Generator().manual_seed(num_tokens)
    return [
        (torch.randn(2, heads, num_tokens, 8, generator=generator, dtype=torch.float64) * by).to(
            dtype
        )
        for heads, by in ((H, scale), (G, 1), (G, 1), (H, 1))
    ]


def attention_of_all(case, dtype=torch.float64):
    """Torch's own, on whole sequences: out and three gradients, in `dtype` of inputs in float64."""
    *leaves, grad = inputs(case, dtype)
    leaves = [each.requires_grad_() for each in leaves]
    out = F.scaled_dot_product_attention(*leaves, is_causal=ALL[case][3], enable_gqa=True)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def own_results(world, strategy, placement, case, dtype=torch.float64):
    """The same four of this rank's tokens."""
    shards = [shard_sequence(each, world, placement, 2) for each in inputs(case, dtype)]
    *leaves, grad = (shard.clone() for shard in shards)
    leaves = [each.requires_grad_() for each in leaves]
    num_tokens, _, _, causal, _ = ALL[case]
    out = strategy(*leaves, world, causal, placement, num_tokens=num_tokens)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def cases_of(strategy, world_size):
    return [case for case in OF_SIZE[world_size] if strategy != "ulysses" or case in CASES]


PLAIN_CASES = {"causal", "five heads", "scores of thousands"}


def plainly(world, case):
    """The plain rung has contiguous shards, a mask, as many heads of keys as of queries."""
    q, k, v, _ = (shard_sequence(x, world, contiguous, 2).flatten(0, 1) for x in inputs(case))
    return [plain.ring_attention(q, k, v, ALL[case][0], world).unflatten(0, (2, -1))]


def each_case(world, strategy):
    if strategy == "plain ring":
        cases = [case for case in OF_SIZE[world.size] if case in PLAIN_CASES]
        return {("contiguous", case): plainly(world, case) for case in cases}
    return {
        (placement, case): own_results(world, STRATEGIES[strategy], where, case)
        for placement, where in PLACEMENTS.items()
        for case in cases_of(strategy, world.size)
    }


def own_rows(x, size, rank, placement):
    rows = [row for segment in placement(x.shape[2], size, rank) for row in segment]
    return x[:, :, rows]


@functools.cache
def expected_of(case):
    return attention_of_all(case)


@functools.cache
def rounding_of(case):
    """A score of S is rounded by S eps, and its weight by that part; sums add a few eps more."""
    q, k, _, _ = inputs(case)
    scores = q.flatten(0, 2) @ k.flatten(0, 2).mT
    largest = scores.abs().max().item() if scores.numel() else 0.0
    return 64 * torch.finfo(torch.float64).eps * (1 + largest)


@pytest.mark.parametrize("world_size", OF_SIZE)
@pytest.mark.parametrize("strategy", ["plain ring", *STRATEGIES])
def test_equals_attention_over_the_whole_sequence(world_size, strategy):
    for rank, of_rank in enumerate(run(each_case, world_size, (strategy,)).values):
        for (placement, case), found in of_rank.items():
            wanted = (
                own_rows(x, world_size, rank, PLACEMENTS[placement]) for x in expected_of(case)
            )
            for name, mine, expected in zip(NAMES, found, wanted, strict=False):
                scale = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
                where = f"{placement}, {case}: {name}"
                torch.testing.assert_close(
                    mine,
                    expected,
                    rtol=0,
                    atol=scale * rounding_of(case),
                    msg=lambda text, where=where: f"{where}: {text}",
                )


GUARD = 8


@functools.cache
def ring_in(dtype, world_size):
    """By placement and case, each rank's four results."""
    cases = ("causal", "grouped heads", "more than a tile")

    def on_a_rank(world):
        return {
            (placement, case): own_results(world, ring_attention, where, case, dtype)
            for placement, where in PLACEMENTS.items()
            for case in cases
        }

    return run(on_a_rank, world_size).values


@pytest.mark.parametrize("world_size", [1, 3])
def test_float32_rounds_no_worse_than_torchs_own(world_size):
    # Torch's float32 leaves its float64 by what rounding does to these sums. Blocks add the same
    # numbers in another order, as often; GUARD times that is for other processors' orders.
    for rank, found in enumerate(ring_in(torch.float32, world_size)):
        for (placement, case), results in found.items():
            exact, rounded = expected_of(case), attention_of_all(case, torch.float32)
            for mine, truth, theirs in zip(results, exact, rounded, strict=True):
                assert mine.dtype == torch.float32
                tolerance = GUARD * (theirs - truth).abs().max().item()
                assert 1e-8 < tolerance < 1e-3
                wanted = own_rows(truth, world_size, rank, PLACEMENTS[placement])
                assert (mine - wanted).abs().max().item() < tolerance


@pytest.mark.parametrize("world_size", [1, 3])
def test_bfloat16_rounds_the_results_and_nothing_before(world_size):
    # Sums are float32's, whose rounding is a thousandth of bfloat16's at most. Results are rounded
    # to 8 binary digits, and backward sees the output so: each row's D is off by up to
    # u * sum |dO O|, and what it takes from each dS by P times that / sqrt(K).
    u = 2**-8
    for rank, found in enumerate(ring_in(torch.bfloat16, world_size)):
        for (placement, case), results in found.items():
            wanted = exact_and_bounds(case, u)
            for mine, (truth, bound) in zip(results, wanted, strict=True):
                assert mine.dtype == torch.bfloat16
                place = PLACEMENTS[placement]
                truth, bound = (own_rows(x, world_size, rank, place) for x in (truth, bound))
                noise = u * 1e-3 * (1 + truth.abs().max())
                assert ((mine - truth).abs() <= u * truth.abs() + bound + noise).all()


@functools.cache
def exact_and_bounds(case, u):
    """In float64 from the bfloat16 inputs: each result, and what the rounded output adds to it."""
    q, k, v, grad = (x.double() for x in inputs(case, torch.bfloat16))
    repeat = q.shape[1] // k.shape[1]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=True, enable_gqa=True)
    gradients = torch.autograd.grad(out, leaves, grad)
    with torch.no_grad():
        k_BHTK = k.repeat_interleave(repeat, 1)
        scores = q @ k_BHTK.mT / q.shape[-1] ** 0.5
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        off_by = weights * u * (grad * out).abs().sum(-1, keepdim=True) / q.shape[-1] ** 0.5
        of_q = off_by @ k_BHTK.abs()
        of_k = (off_by.mT @ q.abs()).unflatten(1, (-1, repeat)).sum(2)
    bounds = torch.zeros_like(out), of_q, of_k, torch.zeros_like(v)
    return [(x.detach(), bound) for x, bound in zip((out, *gradients), bounds, strict=True)]


def twice(world):
    """Two calls, their backward passes in the other order, and one of them once more."""
    q, k, v, grad = (shard_sequence(x, world, zigzag, 2) for x in inputs("causal"))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    outs = [
        ring_attention(*leaves, world, True, zigzag, num_tokens=13),
        ring_attention(*leaves, world, False, zigzag, num_tokens=13),
    ]
    found = {
        "no mask": torch.autograd.grad(outs[1], leaves, grad),
        "causal": torch.autograd.grad(outs[0], leaves, grad, retain_graph=True),
        "again": torch.autograd.grad(outs[0], leaves, grad),
    }
    with torch.no_grad():
        found["no graph"] = ring_attention(*leaves, world, True, zigzag, num_tokens=13)
    return found


def test_calls_do_not_disturb_each_other():
    world_size = 3
    for rank, found in enumerate(run(twice, world_size).values):
        for name in ("causal", "no mask"):
            wanted = [own_rows(x, world_size, rank, zigzag) for x in expected_of(name)]
            torch.testing.assert_close(list(found[name]), wanted[1:], rtol=0, atol=1e-12)
        wanted = own_rows(expected_of("causal")[0], world_size, rank, zigzag)
        torch.testing.assert_close(found["no graph"], wanted, rtol=0, atol=1e-12)
        assert all(map(torch.equal, found["causal"], found["again"]))


def recomputed(world):
    """Keys travel once more in backward, from every rank at the same time."""
    q, k, v, grad = (shard_sequence(x, world, zigzag, 2) for x in inputs("causal"))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    def attend(*shards):
        return ring_attention(*shards, world, True, zigzag, num_tokens=13) * 1

    recompute(attend, *leaves).backward(grad)
    return [x.grad for x in leaves]


def test_a_ring_can_be_recomputed():
    world_size = 3
    result = run(recomputed, world_size)
    for rank, (found, traffic) in enumerate(zip(result.values, result.traffic, strict=True)):
        wanted = [own_rows(x, world_size, rank, zigzag) for x in expected_of("causal")[1:]]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
        assert traffic.by_operation["send"].count == 4 * (world_size - 1)


def of_some(world, strategy):
    """Each input alone needs a gradient; then values alone, on every second rank also keys."""
    q, k, v, grad = (shard_sequence(x, world, contiguous, 2) for x in inputs("causal"))
    found = []
    for chosen in range(3):
        leaves = [x.clone().requires_grad_(i == chosen) for i, x in enumerate((q, k, v))]
        strategy(*leaves, world, num_tokens=13).backward(grad)
        assert [x.grad is None for x in leaves] == [i != chosen for i in range(3)]
        found.append(leaves[chosen].grad)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_gradients_of_one_input_alone(strategy):
    for rank, found in enumerate(run(of_some, 2, (STRATEGIES[strategy],)).values):
        wanted = [own_rows(x, 2, rank, contiguous) for x in expected_of("causal")[1:]]
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def of_different_inputs(world):
    """On rank 0 only queries need a gradient, on rank 1 only values."""
    q, k, v, grad = (shard_sequence(x, world, contiguous, 2) for x in inputs("causal"))
    leaves = [x.clone().requires_grad_(i == 2 * world.rank) for i, x in enumerate((q, k, v))]
    ring_attention(*leaves, world, num_tokens=13).backward(grad)
    return leaves[2 * world.rank].grad


def test_ranks_of_a_ring_may_need_gradients_of_different_inputs():
    wanted = expected_of("causal")[1:]
    for rank, found in enumerate(run(of_different_inputs, 2).values):
        expected = own_rows(wanted[2 * rank], 2, rank, contiguous)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def twice_differentiated(world):
    x = torch.randn(1, 1, 4, 2, requires_grad=True)
    out = ring_attention(x, x, x, world)
    try:
        torch.autograd.grad(out.sum(), x, create_graph=True)
    except RuntimeError as error:
        return str(error)


def test_a_second_derivative_is_refused():
    for said in run(twice_differentiated, 2).values:
        assert "create_graph=True: the gradients of ring_attention" in said


def as_defaults(world):
    """No group, no length: the default group, and equal shards."""
    q, k, v, _ = (shard_sequence(x[:, :, :12], dim=2) for x in inputs("causal"))
    return [strategy(q, k, v) for strategy in STRATEGIES.values()]


def test_without_group_and_length_the_default_group_has_equal_shards():
    q, k, v, _ = (x[:, :, :12] for x in inputs("causal"))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    for rank, found in enumerate(run(as_defaults, 3).values):
        for mine in found:
            torch.testing.assert_close(mine, own_rows(expected, 3, rank, contiguous))
