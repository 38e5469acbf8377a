"""One suite for the whole ladder of data parallelism; torch's own DDP runs through it as a check.

Each case is a module, and losses on a rank's share of a batch. Its gradients must equal those of
one process with the whole batch, in float64, up to the order of adding: a few eps.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from labkit import Group, RankError, run
from labkit.collectives import ring_all_reduce
from labkit.comm import shared_memory_all_reduce
from labkit.data_parallel import (
    DDP,
    BackgroundAllReduce,
    BucketedDDP,
    NaiveDDP,
    OverlappedDDP,
    SymmetricBuckets,
    plain,
)

WIDTH = 5
NUM_SEQUENCES = 7  # divides by none of 2, 3 and 4
TOLERANCE = 1e-13


class Torchs(DistributedDataParallel):
    """torch's own, with the call that it does not need."""

    def __init__(self, module, group, *, bucket_bytes=None, **options):
        if bucket_bytes is not None:
            options["bucket_cap_mb"] = bucket_bytes / 2**20
        super().__init__(module, **options)
        self.group = group

    def reduce_gradients(self):
        pass


class Plain(nn.Module):
    """The plain rung's functions, called as a wrapper is."""

    def __init__(self, module, group):
        super().__init__()
        self.module, self.group = module, group
        plain.broadcast_parameters(module, group)

    def forward(self, x, **options):
        return self.module(x, **options)

    def reduce_gradients(self):
        plain.average_gradients(self.module, self.group)


LADDER: dict[str, Callable[..., nn.Module]] = {
    "plain": Plain,
    "naive": NaiveDDP,
    "bucketed": partial(BucketedDDP, bucket_bytes=200),
    "one bucket": BucketedDDP,
    "overlapped, alone": partial(OverlappedDDP, bucket_bytes=200),
    "overlapped": partial(DDP, bucket_bytes=200),
    "a bucket for each": partial(DDP, bucket_bytes=1),
    "symmetric buckets": lambda module, group, **options: DDP(
        module, group, SymmetricBuckets(group), **{"bucket_bytes": 200, **options}
    ),
    "torch": partial(Torchs, bucket_bytes=200),
}
THAT_OVERLAP = ["overlapped", "a bucket for each", "symmetric buckets", "torch"]
# The hooks of all that overlap are those of "overlapped". torch's own checks the losses of a case.
IN_FEW_CASES = {"a bucket for each": ["once"], "torch": ["once", "accumulated"]}


class Module(nn.Module):
    """Tied, frozen and mixed-precision parameters, and a buffer that training changes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.frozen = nn.Linear(WIDTH, WIDTH, dtype=torch.float64).requires_grad_(False)
        self.tied = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.tied.weight = self.first.weight
        self.narrow = nn.Linear(WIDTH, 1)
        self.left = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.right = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.register_buffer("num_calls", torch.zeros(1))

    def forward(self, x, sides: str = "left right"):
        self.num_calls += 1
        y = torch.tanh(self.frozen(self.tied(torch.tanh(self.first(x)))))
        for side in sides.split():
            y = y + getattr(self, side)(y)
        # Detached: rounding to float32 would reach the gradients in float64.
        return torch.cat([y, self.narrow(y.detach().float()).double()], dim=1)


def batch() -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(NUM_SEQUENCES, WIDTH, dtype=torch.float64, generator=generator)


def loss(model: nn.Module, x: torch.Tensor, **options) -> torch.Tensor:
    return (model(x, **options) ** 2).sum() / max(1, len(x))


def gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()
    }


def share_of(x: torch.Tensor, world: Group) -> tuple[torch.Tensor, float]:
    """This rank's sequences, and the factor that makes a mean over ranks one over sequences."""
    share = x.tensor_split(world.size)[world.rank]
    return share, len(share) / len(x) * world.size


def backward(model: nn.Module, world: Group, x: torch.Tensor, **options) -> None:
    share, factor = share_of(x, world)
    (loss(model, share, **options) * factor).backward()
    model.reduce_gradients()


def once(model, world):
    backward(model, world, batch())


def twice_with_zeroed_gradients(model, world):
    backward(model, world, 2 * batch())
    model.module.zero_grad(set_to_none=False)
    backward(model, world, batch())


def twice_with_forgotten_gradients(model, world):
    backward(model, world, 2 * batch())
    model.module.zero_grad(set_to_none=True)
    backward(model, world, batch())


def serial_once(module):
    loss(module, batch()).backward()


CASES = {
    "once": (once, serial_once),
    "zeroed": (twice_with_zeroed_gradients, serial_once),
    "forgotten": (twice_with_forgotten_gradients, serial_once),
}


def accumulated(model, world):
    """Three microbatches, one reduction."""
    parts = batch().split([3, 3, 1])
    for number, part in enumerate(parts):
        share, factor = share_of(part, world)
        factor *= len(part) / NUM_SEQUENCES
        with model.no_sync() if number < 2 else nullcontext():
            (loss(model, share) * factor).backward()


def several_losses(model, world):
    """Two backward passes through two forward passes, one after the other, and one through both."""
    backward(model, world, batch())
    backward(model, world, 2 * batch())


def serial_several(module):
    loss(module, batch()).backward()
    loss(module, 2 * batch()).backward()


def retained(model, world):
    """Two backward passes through one forward pass."""
    share, factor = share_of(batch(), world)
    value = loss(model, share) * factor
    value.backward(retain_graph=True)
    value.backward()


def serial_retained(module):
    value = loss(module, batch())
    (2 * value).backward()


def after_an_exception_in_backward(model, world):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(context, y):
            return y.clone()

        @staticmethod
        def backward(context, gradient):
            raise ValueError("in the middle")

    share, factor = share_of(batch(), world)
    hook = model.module.tied.register_forward_hook(lambda module, x, y: Fails.apply(y))
    with pytest.raises(ValueError, match="in the middle"):
        loss(model, share).backward()
    hook.remove()
    model.module.zero_grad()
    backward(model, world, batch())


def after_an_exception_in_forward(model, world):
    with pytest.raises(RuntimeError):
        model(torch.ones(3, WIDTH + 1, dtype=torch.float64))
    backward(model, world, batch())


def checkpointed(model, world):
    forward = model.module.forward
    model.module.forward = lambda x: checkpoint(forward, x, use_reentrant=False)
    backward(model, world, batch())
    del model.module.forward


OVERLAPPING_CASES = {
    "accumulated": (accumulated, serial_once),
    "several losses": (several_losses, serial_several),
    "retained": (retained, serial_retained),
    "after an exception in backward": (after_an_exception_in_backward, serial_once),
    "after an exception in forward": (after_an_exception_in_forward, serial_once),
    "checkpointed": (checkpointed, serial_once),
}


PAIRS = [
    (rung, case)
    for rung in LADDER
    for case in IN_FEW_CASES.get(
        rung, {**CASES, **(OVERLAPPING_CASES if rung in THAT_OVERLAP else {})}
    )
]


def gradients_of_each(world: Group, pairs) -> list[dict]:
    found = []
    for rung, case in pairs:
        model = LADDER[rung](Module(seed=world.rank), world)
        {**CASES, **OVERLAPPING_CASES}[case][0](model, world)
        found.append(gradients(model.module))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_gradients_equal_those_of_one_process_with_the_whole_batch(world_size):
    """On 3 ranks in every case. The number of ranks changes shares and sums, and not the hooks."""
    pairs = PAIRS if world_size == 3 else [(rung, case) for rung, case in PAIRS if case == "once"]
    for of_rank in run(gradients_of_each, world_size, (pairs,), timeout=600).values:
        for (rung, case), found in zip(pairs, of_rank, strict=True):
            assert_equals_those_of_one_process(found, rung, case)


def assert_equals_those_of_one_process(found, rung, case):
    module = Module(seed=0)
    {**CASES, **OVERLAPPING_CASES}[case][1](module)
    expected = gradients(module)
    for name, gradient in found.items():
        if expected[name] is None:
            assert gradient is None, "a frozen one"
        else:
            eps = 1e-6 if gradient.dtype == torch.float32 else TOLERANCE
            where = f"{rung}, {case}: {name}"
            torch.testing.assert_close(
                gradient,
                expected[name],
                rtol=eps,
                atol=eps,
                msg=lambda text, at=where: f"{at}: {text}",
            )


def reduced_by(world: Group, name: str) -> dict:
    """The gradients of a backward pass with another all-reduce under it."""
    all_reduces = {
        "ring": ring_all_reduce,
        "a ring in the background": BackgroundAllReduce(ring_all_reduce, world),
        "shared memory": shared_memory_all_reduce,
        "shared memory in the background": BackgroundAllReduce(shared_memory_all_reduce, world),
        "one of the reader's": lambda x, group: group.all_reduce(x.clone()),
    }
    model = DDP(Module(seed=world.rank), world, all_reduces[name], bucket_bytes=200)
    backward(model, world, batch())
    return gradients(model.module)


@pytest.mark.parametrize(
    "name",
    [
        "ring",
        "a ring in the background",
        "shared memory",
        "shared memory in the background",
        "one of the reader's",
    ],
)
def test_any_all_reduce_can_replace_the_librarys(name):
    module = Module(seed=0)
    serial_once(module)
    for found in run(reduced_by, 3, args=(name,)).values:
        torch.testing.assert_close(found["first.weight"], module.first.weight.grad)


def test_a_sum_of_another_shape_or_dtype_is_refused():
    def reduces_wrongly(world):
        model = DDP(Module(), world, lambda x, group: group.all_reduce(x.reshape(1, -1)))
        backward(model, world, batch())

    with pytest.raises(RankError, match=r"all_reduce returned \(1, .* it must return the sum"):
        run(reduces_wrongly, 2)


def left_out_on_rank_1_only(world: Group, rung: str, bucket_bytes: int) -> dict:
    """Rank 0 has started its buckets during backward when rank 1 still has some to fill."""
    options = {"bucket_bytes": bucket_bytes, "find_unused_parameters": True}
    wrap = Torchs if rung == "torch" else DDP
    model = wrap(Module(), world, **options)
    backward(model, world, batch(), sides="" if world.rank == 1 else "left right")
    return gradients(model.module)


@pytest.mark.parametrize("bucket_bytes", [1, 10**6])
@pytest.mark.parametrize("rung", ["overlapped", "torch"])
def test_ranks_may_leave_out_different_parameters(rung, bucket_bytes):
    module, x = Module(), batch()
    shares = x.tensor_split(3)
    used = sum(
        (module(share, sides="" if rank == 1 else "left right") ** 2).sum()
        for rank, share in enumerate(shares)
    )
    (used / len(x)).backward()
    for found in run(left_out_on_rank_1_only, 3, args=(rung, bucket_bytes)).values:
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(found[name], parameter.grad)


def forwards_and_then_backward(world: Group, rung: str, order: str) -> float:
    """The gradient of x -> w x at x = 1 + rank, after some forward passes and one backward."""
    model = LADDER[rung](nn.Linear(1, 1, bias=False), world)
    x = torch.full((1, 1), 1.0 + world.rank)
    if order == "a later one without sync":
        value = model(x)
        with model.no_sync():
            model(x)
    else:
        with model.no_sync():
            value = model(x)
        with torch.no_grad():
            model(x)
    value.sum().backward()
    return model.module.weight.grad.item()


@pytest.mark.parametrize("rung", ["overlapped", "torch"])
def test_a_later_forward_pass_does_not_change_an_earlier_ones_backward(rung):
    args = (rung, "a later one without sync")
    assert run(forwards_and_then_backward, 2, args=args).values == [1.5, 1.5]
    args = (rung, "a later one without gradients")
    assert run(forwards_and_then_backward, 2, args=args).values == [1.0, 2.0]


def test_microbatches_without_sync_broadcast_no_buffers_and_may_differ_in_number():
    def accumulates(world):
        model = DDP(Module(), world)
        at_construction = 1 + len([*model.module.parameters(), *model.module.buffers()])
        with model.no_sync():
            for _ in range(1 + world.rank):
                loss(model, batch()).backward()
        loss(model, batch()).backward()
        return at_construction

    result = run(accumulates, 2)
    for traffic, at_construction in zip(result.traffic, result.values, strict=True):
        # One for the buffers, and one for the order of the gradients.
        assert traffic.by_operation["broadcast"].count == at_construction + 2


@pytest.mark.parametrize("what", ["sparse", "graph"])
def test_gradients_that_no_bucket_can_hold_are_refused(what):
    def passes(world):
        if what == "sparse":
            model = DDP(nn.Embedding(4, 2, sparse=True), world)
            model(torch.tensor([1])).sum().backward()
        else:
            model = DDP(nn.Linear(2, 1), world)
            (model(torch.ones(1, 2)) ** 2).sum().backward(create_graph=True)

    with pytest.raises(RankError, match="is sparse or has a graph of its own"):
        run(passes, 1)


def left_out(world: Group, rung: str, find: bool) -> dict:
    """Rank 1 leaves out one side; `neither` leaves out `right` everywhere."""
    model = LADDER[rung](Module(), world, find_unused_parameters=find)
    backward(model, world, batch(), sides="" if world.rank == 1 else "left")
    return gradients(model.module)


@pytest.mark.parametrize("rung", THAT_OVERLAP)
def test_find_unused_parameters_lets_losses_leave_parameters_out(rung):
    everyone = run(left_out, 3, args=(rung, True)).values
    for found in everyone:
        assert found["right.weight"] is None, "left out everywhere: the optimizer skips it"
        torch.testing.assert_close(found["left.weight"], everyone[0]["left.weight"])
    module = Module()
    x = batch()
    used = sum(
        (module(share, sides="" if rank == 1 else "left") ** 2).sum()
        for rank, share in enumerate(x.tensor_split(3))
    )
    (used / len(x)).backward()
    torch.testing.assert_close(everyone[0]["left.weight"], module.left.weight.grad)
    torch.testing.assert_close(everyone[0]["first.weight"], module.first.weight.grad)


def test_without_find_unused_parameters_the_error_names_the_parameter_and_the_model_stays_usable():
    with pytest.raises(RankError, match="rank 1: .* left out left.bias, left.weight") as caught:
        run(left_out_and_then_not, 2, args=([1],))
    assert caught.value.rank == 1
    module = Module(seed=0)
    serial_once(module)
    for found in run(left_out_and_then_not, 2, args=([0, 1],)).values:
        torch.testing.assert_close(found["first.weight"], module.first.weight.grad)


def left_out_and_then_not(world: Group, by: list[int]) -> dict:
    model = DDP(Module(), world, bucket_bytes=200)
    sides = "right" if world.rank in by else "left right"
    with pytest.raises(RuntimeError) if by == [0, 1] else nullcontext():
        backward(model, world, batch(), sides=sides)
    model.module.zero_grad()
    backward(model, world, batch())
    return gradients(model.module)


def test_the_first_bucket_travels_before_the_last_gradient_is_ready():
    def one_step(world):
        model = DDP(nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), world, bucket_bytes=1)
        first = next(model.module.parameters())
        last_at = []
        first.register_post_accumulate_grad_hook(lambda p: last_at.append(world.region("last")))
        first.register_post_accumulate_grad_hook(lambda p: enter_and_leave(last_at[0]))
        model(torch.ones(2, 8)).sum().backward()

    def enter_and_leave(region):
        with region:
            pass

    for timeline in run(one_step, 2).timeline:
        (last,) = [region.start_s for region in timeline.regions if region.name == "last"]
        started = [each for each in timeline.operations if each.label and each.kind == "all_reduce"]
        assert len(started) == 12
        assert sum(each.posted_s < last for each in started) >= 10
        assert max(each.done_s for each in started) > last


def test_accumulation_costs_one_all_reduce_per_bucket_and_optimizer_step():
    def accumulates(world):
        model = DDP(Module(), world)
        for _ in range(3):
            accumulated(model, world)
            model.module.zero_grad()
        return len(model.buckets)

    result = run(accumulates, 2)
    assert result.values[0] == 2, "one bucket per dtype"
    assert result.traffic[0].by_operation["all_reduce"].count == 3 * 2


def test_buffers_follow_rank_0_in_training_and_are_not_sent_in_evaluation():
    def counts(world):
        model = DDP(Module(), world)
        model.module.num_calls.fill_(float(10 * world.rank))
        model(batch())
        in_training = model.module.num_calls.item()
        model.eval()
        if world.rank == 1:
            model(batch())  # alone
        return in_training, model.module.num_calls.item()

    assert run(counts, 3).values == [(1, 1), (1, 2), (1, 1)]


def test_state_dict_of_the_module_keeps_its_names():
    def names(world):
        return list(DDP(Module(), world).module.state_dict())

    assert run(names, 1).values[0] == list(Module().state_dict())


def test_a_module_that_is_wrapped_again_is_averaged_once_by_the_newest_wrapper():
    def wraps_twice(world):
        module = Module(seed=0)
        DDP(module, world)
        backward(DDP(module, world), world, batch())
        return gradients(module)

    module = Module(seed=0)
    serial_once(module)
    for found in run(wraps_twice, 3).values:
        torch.testing.assert_close(found["first.weight"], module.first.weight.grad)


def test_a_wrapper_is_not_wrapped():
    with pytest.raises(RankError, match="not wrapped yet"):
        run(lambda world: DDP(DDP(Module(), world), world), 1)


def test_a_rank_outside_of_the_group_gets_an_error_and_does_not_join_the_world():
    def outsider(world):
        DDP(Module(), world.split(None if world.rank == 2 else 0))

    with pytest.raises(RankError, match="rank 2 uses size of a group that it does not belong to"):
        run(outsider, 3)


def test_reentrant_checkpoints_are_refused_and_the_error_says_what_to_do():
    def reenters(world):
        model = DDP(Module(), world)
        forward = model.module.forward
        model.module.forward = lambda x: checkpoint(forward, x, use_reentrant=True)
        x = batch().requires_grad_()
        (model(x) + model.module.first(x).sum()).sum().backward()

    with pytest.raises(RankError, match="use_reentrant=False"):
        run(reenters, 1)
