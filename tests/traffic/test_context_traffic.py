"""Attention over cut sequences: bytes and messages by the journal, scores by counting, memory.

Each against calc, which was written without looking at the code.
"""

import functools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import calc, run
from labkit.calc.traffic.context import ring_attention_messages
from labkit.context_parallel import (
    contiguous,
    gathered_attention,
    ring_attention,
    shard_sequence,
    ulysses_attention,
    zigzag,
)
from labkit.context_parallel.ring import TILE_TOKENS
from labkit.memory import Meter

STRATEGIES = {
    "ring": ring_attention,
    "ulysses": ulysses_attention,
    "gathered": gathered_attention,
}
PLACEMENTS = {"contiguous": contiguous, "zigzag": zigzag}
B, H, G, K = 2, 24, 12, 4  # 2, 3 and 4 ranks divide G
NUM_TOKENS = [0, 2, 13, 24]


def leaves_of(world, num_tokens, placement, dtype=torch.float32, heads=(H, G), head_dim=K, batch=B):
    """This rank's q, k, v of a random sequence, and the gradient of its output."""
    generator = torch.Generator().manual_seed(0)
    q, k = (
        torch.randn(batch, each, num_tokens, head_dim, generator=generator, dtype=torch.float64)
        for each in heads
    )
    q, k = (shard_sequence(x.to(dtype), world, placement, 2).clone() for x in (q, k))
    return q.requires_grad_(), k.requires_grad_(), k.clone().requires_grad_(), torch.ones_like(q)


def attend_each(world, dtype):
    for strategy, attention in STRATEGIES.items():
        for placement, where in PLACEMENTS.items():
            for num_tokens in NUM_TOKENS:
                *leaves, grad = leaves_of(world, num_tokens, where, dtype)
                name = f"{strategy}, {placement}, {num_tokens}"
                with world.region(f"{name}, forward"):
                    out = attention(*leaves, world, True, where, num_tokens=num_tokens)
                with world.region(f"{name}, backward"):
                    out.backward(grad)


@functools.cache
def timelines(world_size, dtype):
    return run(attend_each, world_size, (dtype,)).timeline


@pytest.mark.parametrize(
    ("world_size", "dtype"),
    [*((size, torch.float32) for size in (1, 2, 3, 4)), (3, torch.bfloat16)],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_pass_sends_what_calc_says(world_size, dtype, strategy):
    sizes = {"num_heads": H, "num_kv_heads": G, "head_dim": K, "batch": B}
    for rank, timeline in enumerate(timelines(world_size, dtype)):
        for placement in PLACEMENTS:
            for num_tokens in NUM_TOKENS:
                predicted = calc.context_traffic_bytes(
                    strategy,
                    num_tokens,
                    world_size,
                    rank,
                    **sizes,
                    itemsize=dtype.itemsize,
                    placement=placement,
                )
                for which in ("forward", "backward"):
                    name = f"{strategy}, {placement}, {num_tokens}, {which}"
                    sent = sum(op.sent_bytes for op in timeline.within(name))
                    assert sent == sum(
                        part.value
                        for part_name, part in predicted.parts.items()
                        if part_name.startswith(which)
                    ), name


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_ring_sends_so_many_messages_to_the_right_and_nothing_else(world_size):
    messages = ring_attention_messages(world_size)
    for rank, timeline in enumerate(timelines(world_size, torch.float32)):
        operations = timeline.within("ring, zigzag, 13, forward")
        operations += timeline.within("ring, zigzag, 13, backward")
        sends = [op for op in operations if op.kind == "send"]
        recvs = [op for op in operations if op.kind == "recv"]
        assert len(operations) == 2 * len(sends) == 2 * len(recvs)
        assert len(sends) == messages
        assert {op.peer for op in sends} <= {(rank + 1) % world_size}
        assert {op.peer for op in recvs} <= {(rank - 1) % world_size}


@pytest.mark.parametrize("world_size", [2, 4])
def test_gradients_travel_as_often_as_keys(world_size):
    for timeline in timelines(world_size, torch.float32):
        operations = timeline.within("ring, contiguous, 24, backward")
        labels = [op.label for op in operations if op.kind == "send"]
        assert sum(each.startswith("keys and values") for each in labels) == world_size - 1
        assert sum(each.startswith("gradients of keys") for each in labels) == world_size - 1


def kinds_under_way(operations, region):
    """Return the kinds of operations that were posted before the region and awaited after it."""
    return sorted(
        op.kind
        for op in operations
        if op.posted_s <= region.start_s and op.waited_s >= region.end_s
    )


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("span", ["attention to rank", "gradients of rank"])
def test_the_next_keys_are_under_way_before_a_block_is_computed_and_awaited_after(world_size, span):
    for timeline in timelines(world_size, torch.float32):
        spans = [each for each in timeline.regions if each.name.startswith(span)]
        assert len(spans) == 2 * len(NUM_TOKENS) * world_size
        kv = [op for op in timeline.operations if (op.label or "").startswith("keys and values")]
        for step, region in enumerate(spans):
            is_last = step % world_size == world_size - 1
            meanwhile = [
                op.kind
                for op in kv
                if op.posted_s <= region.start_s and op.waited_s >= region.end_s
            ]
            assert sorted(meanwhile) == ([] if is_last else ["recv", "send"])


@pytest.mark.parametrize("world_size", [3, 4])
def test_gradients_travel_while_the_next_block_is_computed(world_size):
    for timeline in timelines(world_size, torch.float32):
        spans = [each for each in timeline.regions if each.name.startswith("gradients of rank")]
        gradients = [op for op in timeline.operations if "gradients of" in (op.label or "")]
        for step, region in enumerate(spans):
            has_started = step % world_size >= 2
            assert kinds_under_way(gradients, region) == (["recv", "send"] if has_started else [])


class Products(TorchDispatchMode):
    """Counts multiplications in matrix products, and the largest result of any operation."""

    def __init__(self):
        super().__init__()
        self.num_multiplications = self.largest_numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            # An expanded or a sliced tensor takes no memory of its own.
            self.largest_numel = max(
                self.largest_numel, result.untyped_storage().nbytes() // result.element_size()
            )
        if str(function) in ("aten.mm.default", "aten.bmm.default"):
            self.num_multiplications += result.numel() * args[0].shape[-1]
        return result


def multiplications(world, num_tokens, placement):
    *leaves, grad = leaves_of(world, num_tokens, placement, heads=(3, 1))
    with Products() as forward:
        out = ring_attention(*leaves, world, True, placement, num_tokens=num_tokens)
    with Products() as backward:
        out.backward(grad)
    return forward.num_multiplications, backward.num_multiplications


@functools.cache
def multiplications_of(world_size, num_tokens, placement):
    return run(multiplications, world_size, (num_tokens, PLACEMENTS[placement])).values


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("num_tokens", [3, 41, 2 * TILE_TOKENS + 300])
def test_scores_computed_are_those_of_calc(world_size, placement, num_tokens):
    # A score takes K multiplications and its value K more; backward has five such products.
    found = multiplications_of(world_size, num_tokens, placement)
    for rank, (forward, backward) in enumerate(found):
        scores = calc.context_score_elements(
            num_tokens, world_size, rank, placement=placement, tile=TILE_TOKENS
        )
        assert forward == 2 * K * 3 * B * scores.value
        assert backward == 5 * K * 3 * B * scores.value


def test_zigzag_gives_all_ranks_equal_work_and_contiguous_does_not():
    work = {
        name: [forward for forward, _ in multiplications_of(4, 2 * TILE_TOKENS + 300, name)]
        for name in PLACEMENTS
    }
    # 812 tokens in eight segments of 101 or 102.
    assert max(work["zigzag"]) / min(work["zigzag"]) < 1.01
    # On the diagonal whole blocks are computed, and count twice: (4 * 4 - 2 * 3) / 1 and less.
    assert 3.9 < max(work["contiguous"]) / min(work["contiguous"]) < 7


def memory_of_a_step(world, num_tokens, placement):
    *leaves, grad = leaves_of(world, num_tokens, placement, heads=(1, 1), head_dim=8, batch=1)
    with Meter() as meter, Products() as products:
        ring_attention(*leaves, world, True, placement).backward(grad)
    return meter.usage.peak_bytes, products.largest_numel


@functools.cache
def peaks(world_size, num_tokens, placement):
    values = run(memory_of_a_step, world_size, (num_tokens, PLACEMENTS[placement])).values
    return [peak for peak, _ in values], [largest for _, largest in values]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_memory_grows_with_the_tokens_of_a_rank_not_with_their_square(placement):
    # Beyond a tile of scores, which has one size, everything is a number of tokens long: what
    # 512 tokens add is half of what the next 1024 add. Of squares it would be a quarter.
    by_tokens = [peaks(2, 2 * own, placement)[0] for own in (512, 1024, 2048)]
    for one, two, four in zip(*by_tokens, strict=True):
        assert (four - two) / (two - one) == pytest.approx(2, rel=0.05)


def test_ranks_with_as_many_tokens_need_as_much_however_long_the_sequence():
    # From four ranks on: two or three have fewer messages under way at once.
    four, five = peaks(4, 4 * 512, "zigzag")[0], peaks(5, 5 * 512, "zigzag")[0]
    assert {*four} == {*five}


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_no_tensor_is_as_large_as_the_scores_of_a_shard(placement):
    own, head_dim = 1024, 8
    for largest in peaks(2, 2 * own, placement)[1]:
        assert largest <= max(TILE_TOKENS**2, 2 * own * head_dim)
        assert largest < own**2 / 15
