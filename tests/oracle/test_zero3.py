"""zero3 equals one process with the whole batch, and has no more than two units at a time."""

import copy
import gc
import time
import weakref
from functools import cache, partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from labkit import Group, RankError, calc, run
from labkit.data_parallel import DDP
from labkit.memory import Meter
from labkit.model import GPT, GPTConfig
from labkit.optimizer import SGD, AdamW
from labkit.recompute import recompute
from labkit.zero import (
    LIBRARY,
    RING,
    SHARED_MEMORY,
    CollectiveBackend,
    FullyShardedModule,
    Zero1Optimizer,
    plain_zero3,
)

CONFIG = GPTConfig(vocab=31, context=6, num_layers=3, hidden=12, num_heads=3, ffn=22)
NUM_SEQUENCES = 7  # divides by none of 2, 3 and 4
TOLERANCE = 1e-11


def tokens(step):
    return torch.randint(31, (NUM_SEQUENCES, 6), generator=torch.Generator().manual_seed(step))


def loss(model, x, num_ranks=1):
    """A rank's share counts as much as it has sequences."""
    if not len(x):
        return model(x.new_zeros(1, 6)).sum() * 0
    total = F.cross_entropy(model(x).flatten(0, 1).double(), x.flatten(), reduction="sum")
    return total / (NUM_SEQUENCES * 6) * num_ranks


def gpt(dtype=torch.float64):
    return GPT(CONFIG, 0, dtype)


@cache
def serial(num_steps=2, num_microbatches=1):
    model = gpt()
    optimizer = AdamW(model.parameters(), 1e-2)
    for step in range(num_steps):
        optimizer.zero_grad()
        for microbatch in range(num_microbatches):
            loss(model, tokens(step + 100 * microbatch)).backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def trained(world: Group, num_steps=2, num_microbatches=1, wrap=FullyShardedModule, **options):
    module = gpt()
    if world.rank:
        for parameter in module.parameters():
            parameter.data.mul_(0.5)  # rank 0's count
    model = wrap(module, world, **options)
    optimizer = AdamW(model.parameters(), 1e-2)
    for step in range(num_steps):
        optimizer.zero_grad()
        for microbatch in range(num_microbatches):
            share = tokens(step + 100 * microbatch).tensor_split(world.size)[world.rank]
            loss(model, share, world.size).backward()
        optimizer.step()
    return model.full_parameters()


def gradients_of(model):
    return [p.grad for p in model.parameters() if p.grad is not None]


def assert_equals(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_parameters_equal_those_of_one_process(world_size):
    by_rank = run(lambda world: (trained(world), trained_plainly(world)), world_size).values
    for found, plainly in by_rank:
        assert_equals(found, serial())
        torch.testing.assert_close(plainly, serial_layers(), rtol=TOLERANCE, atol=TOLERANCE)


def features(step):
    """Return the input of the GPT's first block."""
    return gpt().embedding(tokens(step)).detach()


def layers():
    """The GPT's blocks, and a layer of 13 parameters, which no number of ranks divides."""
    torch.manual_seed(0)
    return nn.Sequential(*gpt().blocks, nn.Linear(12, 1, dtype=torch.float64))


def serial_layers():
    model = layers()
    optimizer = AdamW(model.parameters(), 1e-2)
    for step in range(2):
        optimizer.zero_grad()
        (model(features(step)) ** 2).sum().backward()
        optimizer.step()
    return [parameters_to_vector(layer.parameters()).detach() for layer in model]


class PlainUnit:
    """A layer as a unit of the plain rung."""

    def __init__(self, layer, group):
        self.layer = layer
        self.shapes = {name: p.shape for name, p in layer.named_parameters()}
        flat = parameters_to_vector(layer.parameters()).detach()
        self.numel = len(flat)
        padded = F.pad(flat, (0, -self.numel % group.size))
        self.shard = nn.Parameter(padded.tensor_split(group.size)[group.rank].clone())

    def forward(self, weights, x):
        parts = weights.split([shape.numel() for shape in self.shapes.values()])
        named = zip(self.shapes.items(), parts, strict=True)
        parameters = {name: part.view(shape) for (name, shape), part in named}
        return functional_call(self.layer, parameters, x)

    def backward(self, weights, x, y_gradient):
        leaves = x.detach().requires_grad_(), weights.requires_grad_()
        with torch.enable_grad():
            y = self.forward(leaves[1], leaves[0])
        return torch.autograd.grad(y, leaves, y_gradient)


@torch.no_grad()
def trained_plainly(world: Group):
    """The layers' parameters after two steps of the plain rung."""
    units = [PlainUnit(layer, world) for layer in layers()]
    optimizer = AdamW([unit.shard for unit in units], 1e-2)
    for step in range(2):
        share = features(step).tensor_split(world.size)[world.rank]
        gradients = plain_zero3.zero3_unit(units, share, lambda y: 2 * y * world.size, world)
        for unit, gradient in zip(units, gradients, strict=True):
            unit.shard.grad = gradient
        optimizer.step()
    return [world.all_gather(unit.shard.data)[: unit.numel] for unit in units]


def test_parameters_equal_those_of_one_process_with_each_option():
    cases = [{"debug": True}, {"backend": SHARED_MEMORY}, {"backend": LIBRARY}, {"units": ()}]

    def all_of_them(world):
        gathered = [trained_without_reshard(world, which) for which in ("all", "root")]
        return [trained(world, **case) for case in cases] + gathered

    for everyone in run(all_of_them, 3, timeout=600).values:
        for found in everyone:
            assert_equals(found, serial())


def trained_without_reshard(world, which):
    def wrap(module, group):
        resharded = False if which == "all" else module.blocks
        return FullyShardedModule(module, group, reshard_after_forward=resharded)

    return trained(world, wrap=wrap)


def test_microbatches_add_up():
    for found in run(trained, 3, (2, 3)).values:
        assert_equals(found, serial(num_microbatches=3))


def test_hybrid_sharding_shards_within_hosts_and_adds_up_across_them():
    def hybrid(world):
        host, across = world.split(world.rank // 2), world.split(world.rank % 2)

        def wrap(module, _):
            return FullyShardedModule(module, host, replicas=across)

        found = trained(world, wrap=wrap)
        return found, wrap(gpt(), world).shards[0].numel()

    for found, numel in run(hybrid, 4).values:
        assert_equals(found, serial())
        assert numel == -(-(31 * 12 + 6 * 12 + 12) // 2), "an n-th of a host's ranks"


class Odd(nn.Module):
    """Weights tied between layers, a layer that is called twice, frozen ones, two dtypes, a buffer
    and a layer that gets no gradient through its input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*(nn.Linear(5, 5, dtype=torch.float64) for _ in range(4)))
        self.layers[2].weight = self.layers[0].weight
        self.layers[3].requires_grad_(False)
        self.layers.append(nn.ModuleList([nn.Linear(5, 3)]))
        self.register_buffer("scale", torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x):
        first, second, third, frozen, (single,) = self.layers
        h = torch.tanh(third(torch.tanh(second(first(x)))))
        h = second(h) * self.scale  # again
        h = recompute(first, frozen(h))
        return (h**2).sum(1) + single(x.float()).double().sum(1)


def test_unusual_modules_equal_one_process():
    x = torch.randn(NUM_SEQUENCES, 5, dtype=torch.float64)

    def trains(world):
        model = FullyShardedModule(Odd(), world)
        optimizer = SGD(model.parameters(), 1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            share = x.tensor_split(world.size)[world.rank]
            (model(share).sum() * world.size).backward()
            optimizer.step()
        return model.full_parameters()

    model = Odd()
    optimizer = SGD([p for p in model.parameters() if p.requires_grad], 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    for world_size in (1, 3):
        for found in run(trains, world_size).values:
            for name, value in model.named_parameters():
                eps = 100 * torch.finfo(value.dtype).eps
                torch.testing.assert_close(found[name], value.detach(), rtol=eps, atol=eps)


class Mixed(nn.Module):
    """Trained and frozen parameters, and two dtypes, in one layer of two results."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.early, self.late, self.fixed = (nn.Linear(3, 3, dtype=torch.float64) for _ in range(3))
        self.fixed.requires_grad_(False)
        self.scale = nn.Parameter(torch.full((3,), 1 / 3))

    def forward(self, x):
        return self.early(x) * self.scale, self.fixed(torch.tanh(self.late(x)))


class TwoMixed(nn.Module):
    """One result of the first layer goes through the second, so its gradient comes later."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Mixed(), Mixed()])

    def forward(self, x):
        first, second = self.layers
        early, late = first(x)
        return early.sum() + sum(y.sum() for y in second(late))


def test_a_layer_may_have_parameters_of_several_kinds_and_several_results():
    x = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def trains(world):
        model = FullyShardedModule(TwoMixed(), world)
        optimizer = SGD(model.parameters(), 0.1)
        (model(x)).backward()
        optimizer.step()
        return model.full_parameters()

    model = TwoMixed()
    model(x).backward()
    SGD([p for p in model.parameters() if p.requires_grad], 0.1).step()
    for found in run(trains, 2).values:
        for name, value in model.named_parameters():
            assert found[name].dtype == value.dtype
            eps = 100 * torch.finfo(value.dtype).eps
            torch.testing.assert_close(found[name], value.detach(), rtol=eps, atol=eps)


class Branch(nn.Module):
    """A layer in a model, which may use nothing of its own in a pass, or not all of it."""

    def __init__(self):
        super().__init__()
        self.linear, self.spare = nn.Linear(3, 3), nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x, uses):
        return torch.tanh(self.linear(x * self.scale.to(x.dtype))) if uses else x


class LeavesOut(nn.Module):
    """`scaled` and all of the second layer are used in some passes, `unused` in none."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Branch(), Branch()])
        self.unused, self.scaled, self.frozen = (nn.Parameter(torch.ones(5)) for _ in range(3))
        self.frozen.requires_grad_(False)

    def forward(self, x, uses):
        first, second = self.layers
        y = second(first(x, True), uses).sum()
        return y + (self.scaled * self.frozen).sum() if uses else y


def steps_that_leave_out(model, passes, num_ranks):
    """Two steps of two passes each; by name: whether there is a gradient before each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    found = []
    for step in passes:
        optimizer.zero_grad()
        for x, uses in step:
            (model(x, uses) / num_ranks).backward()
        found.append({n: p.grad is not None for n, p in model.named_parameters() if p.numel()})
        optimizer.step()
    return found


def passes_of(ranks):
    """Return these ranks' passes in two steps; in the second pass of the first, rank 0 uses all."""
    return [
        [
            (torch.full((2, 3), 1.0 + rank), (step, number, rank) == (0, 1, 0))
            for number in (0, 1)
            for rank in ranks
        ]
        for step in (0, 1)
    ]


def leaves_out(world, options):
    found = []
    for each in options:
        group = world
        if "replicas" in each:
            group = world.split(world.rank // 2)
            each = {"replicas": world.split(world.rank % 2)}
        model = FullyShardedModule(LeavesOut(), group, **each)
        has_gradient = steps_that_leave_out(model, passes_of([world.rank]), 1)
        found.append((has_gradient, model.full_parameters()))
    return found


LEAVES_OUT = (
    {},
    {"backend": LIBRARY},
    {"backend": SHARED_MEMORY},
    {"reshard_after_forward": False},
    {"units": []},
    {"compute_dtype": torch.float16},
)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_unused_parameters_have_no_gradient_and_count_as_zeros_if_another_rank_uses_them(num_ranks):
    model = LeavesOut()
    has_gradient = steps_that_leave_out(model, passes_of(range(num_ranks)), num_ranks)
    assert has_gradient[0]["scaled"] and not has_gradient[1]["scaled"]
    options = [*LEAVES_OUT, {"replicas": True}] if num_ranks == 4 else LEAVES_OUT
    for of_rank in run(leaves_out, num_ranks, args=(options,)).values:
        for each, (found, parameters) in zip(options, of_rank, strict=True):
            for of_step, expected in zip(found, has_gradient, strict=True):
                assert of_step == {name: expected[name] for name in of_step}, each
            rounding = 2e-2 if "compute_dtype" in each else 1e-5
            for name, value in model.named_parameters():
                torch.testing.assert_close(
                    parameters[name], value.detach(), rtol=rounding, atol=rounding
                )


class Table(nn.Module):
    """A frozen table of whole numbers, and a buffer that every rank has made for itself."""

    def __init__(self, rank):
        super().__init__()
        self.table = nn.Parameter(torch.tensor([1001, 1003, 1005]), requires_grad=False)
        self.register_buffer("scale", torch.tensor(2.0 + rank))

    def forward(self, x):
        return x * self.scale, self.table.clone()


@pytest.mark.parametrize("debug", [False, True])
def test_whole_numbers_are_not_cast_and_buffers_are_rank_0s(debug):
    def computes(world):
        model = FullyShardedModule(Table(world.rank), world, torch.bfloat16, debug=debug)
        y, table = model(torch.ones(1))
        return y.item(), table.tolist()

    assert run(computes, 2).values == [(2.0, [1001, 1003, 1005])] * 2


def test_a_layer_may_communicate_on_the_sharding_groups_while_the_next_one_is_gathered():
    def talks(world):
        host, across = world.split(world.rank // 2), world.split(world.rank % 2)

        def late(own, group, out):
            time.sleep(0.2 * host.rank)  # after the other ranks have started
            return LIBRARY.all_gather(own, group, out)

        def late_sum(flat, group, in_place):
            time.sleep(0.2 * across.rank)
            return RING.reduce_scatter(flat, group, in_place)

        layers = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(3)))
        backend = CollectiveBackend(RING.all_reduce, late_sum, late)
        model = FullyShardedModule(layers, host, replicas=across, backend=backend)
        for layer in layers:
            layer.register_forward_hook(lambda _, inputs, y: sleeps_and_sums(y, host))
            layer.register_full_backward_hook(lambda *_: sleeps_and_sums(torch.ones(1), across))
        sums = []
        for _ in range(2):
            model(torch.ones(1, 3, requires_grad=True)).sum().backward()
            sums.append([gradient.norm().item() for gradient in gradients_of(model)])
        return sums

    def sleeps_and_sums(x, group):
        time.sleep(0.1 * (1 - group.rank))
        group.all_reduce(x.detach())

    assert all(len(sums) == 2 for sums in run(talks, 4).values)


class Recomputed(nn.Module):
    """A layer that is called from within its own backward pass."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside

    def forward(self, x):
        # To its end, so that it would be released there: the lab's own stops as soon as it can.
        with set_checkpoint_early_stop(False):
            return checkpoint(self.inside, x, use_reentrant=False)


def test_recomputed_layers_are_gathered_again_and_give_the_same_gradients():
    def recomputes(world):
        def wrap(module, group):
            for block in module.blocks:
                inside = block.forward
                block.forward = lambda x, inside=inside: recompute(inside, x)
            return FullyShardedModule(module, group)

        def around(module, group):
            forward = module.forward
            module.forward = lambda x: recompute(forward, x)
            return FullyShardedModule(module, group)

        def by_layer(module, group):
            blocks = list(module.blocks)
            for n, block in enumerate(blocks):
                module.blocks[n] = Recomputed(block)
            return FullyShardedModule(module, group, units=blocks)

        found = [trained(world, wrap=each) for each in (wrap, around, by_layer)]
        found[2] = {name.replace("inside.", ""): value for name, value in found[2].items()}
        return found

    for found in run(recomputes, 3).values:
        for each in found:
            assert_equals(each, serial())


def passes(world, num_microbatches, reshard):
    model = FullyShardedModule(gpt(torch.float32), world, reshard_after_forward=reshard)
    world.barrier()
    with world.region("steps"):
        for microbatch in range(num_microbatches):
            share = tokens(microbatch).tensor_split(world.size)[world.rank]
            loss(model, share, world.size).backward()
    return sum(shard.numel() for shard in model.shards) * world.size


@pytest.mark.parametrize("reshard", [True, False])
def test_traffic_is_three_times_the_parameters_for_each_microbatch_and_two_without_reshard(reshard):
    k = 2
    for n in (1, 2, 3):
        result = run(passes, n, (k, reshard))
        padded = result.values[0]
        expected = float(calc.step_traffic_bytes("zero3", padded, n, microbatches=k, itemsize=4))
        assert expected == pytest.approx(3 * k * (n - 1) / n * 4 * padded)
        if not reshard:
            expected *= 2 / 3
        for timeline in result.timeline:
            region = timeline.regions[0]
            sent = [op for op in timeline.operations if op.posted_s >= region.start_s]
            assert sum(op.sent_bytes for op in sent) == round(expected)


def test_the_next_unit_is_gathered_ahead_and_gradients_follow_in_backward():
    (timeline, _) = run(passes, 2, (2, True)).timeline
    begin = timeline.regions[0].start_s
    labels = [op.label for op in timeline.operations if op.posted_s >= begin and op.label]
    labels = [each for n, each in enumerate(labels) if n == 0 or labels[n - 1] != each]
    layers = [f"blocks.{n}" for n in range(3)]
    root = "root unit"
    forward = [f"weights of {each}" for each in (root, *layers)]
    backward = [f"weights of {root}"]
    backward += [f"weights of {each}" for each in reversed(layers)]
    backward += [f"gradients of {each}" for each in (*reversed(layers), root)]
    one = len(forward) + len(backward)
    assert len(labels) == 2 * one
    for microbatch in (labels[:one], labels[one:]):
        assert microbatch[: len(forward)] == forward
        assert sorted(microbatch[len(forward) :]) == sorted(backward)
        # The layer before is gathered before the gradients of this one are reduced.
        for this, before in zip(layers[:0:-1], layers[-2::-1], strict=True):
            ahead = microbatch.index(f"weights of {before}", len(forward))
            assert ahead < microbatch.index(f"gradients of {this}")


def test_the_next_layer_is_on_its_way_while_one_computes():
    def computes(world, number, *_):
        with world.region(f"block {number}"):
            time.sleep(0.001)

    def slow(world):
        module = gpt()
        model = FullyShardedModule(module, world)
        for number, block in enumerate(module.blocks):
            block.register_forward_hook(partial(computes, world, number))
        for number in range(2):
            with world.region(f"pass {number}"), torch.no_grad():
                model(tokens(0))

    for timeline in run(slow, 2).timeline:
        first, second = (r for r in timeline.regions if r.name.startswith("pass "))
        for region, is_ahead in ((first, False), (second, True)):
            started_s = [
                next(op.posted_s for op in timeline.operations if is_gather(op, n, region))
                for n in range(3)
            ]
            # While the first computes, the second is on its way, or is not.
            computed_s = next(
                each.end_s
                for each in timeline.regions
                if each.name == "block 0" and region.start_s <= each.start_s <= region.end_s
            )
            assert (started_s[1] < computed_s) == is_ahead


def is_gather(op, layer, region):
    is_within = region.start_s <= op.posted_s <= region.end_s
    return is_within and op.label == f"weights of blocks.{layer}"


def measures(world):
    width, num_layers = 64, 8
    module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
    model = FullyShardedModule(module, world)
    optimizer = AdamW(model.parameters(), 1e-3)
    with Meter(model, optimizer) as meter:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, width)).sum().backward()
            optimizer.step()
    usage = meter.usage
    return {kind: usage.peak_of(kind) for kind in usage.bytes_of}


def test_states_take_exactly_one_nth_and_at_most_two_units_are_gathered():
    numel, unit = 8 * 64**2, 4 * 64**2
    for n in (1, 4):
        states = calc.model_state_bytes(numel, "fp32", zero=3, dp=n)
        for found in run(measures, n).values:
            assert found["parameters"] == float(states["parameters"]) == 4 * numel / n
            assert found["gradients"] == float(states["gradients"])
            assert found["optimizer states"] == float(states["moments"])
            # One unit computes, and of these two are there: the next one, gathered or on its way,
            # its own gradients, and those of the last one. Never all; never the whole module.
            assert found["buffers"] == 3 * unit


def test_a_model_that_is_recomputed_as_a_whole_holds_no_more_units():
    def around(world):
        module = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
        forward = module.forward
        module.forward = lambda x: recompute(forward, x)
        model = FullyShardedModule(module, world)
        with Meter(model) as meter:
            model(torch.ones(1, 64)).sum().backward()
        return meter.usage.peak_of("buffers")

    assert all(0 < peak <= 4 * 4 * 64**2 for peak in run(around, 2).values)


def test_shards_are_float32_where_bfloat16_computes():
    def computes(world):
        seen = []
        module = gpt(torch.float32)
        module.blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
        model = FullyShardedModule(module, world, torch.bfloat16)
        loss(model, tokens(0).tensor_split(world.size)[world.rank], world.size).backward()
        flat = torch.cat(gradients_of(model))
        gradients = {gradient.dtype for gradient in gradients_of(model)}
        return seen, {p.dtype for p in model.parameters()}, gradients, flat

    result = run(computes, 2)
    found = torch.cat([each[3] for each in result.values])
    dtypes = {op.dtype for op in result.timeline[0].operations if op.label}
    assert dtypes == {"bfloat16"}, "half the bytes on the wire"
    model = gpt(torch.float32)
    loss(model, tokens(0)).backward()
    size = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for seen, shards, gradients, _ in result.values:
        assert (seen, shards, gradients) == ([torch.bfloat16], {torch.float32}, {torch.float32})
    torch.testing.assert_close(found.norm(), size, rtol=0.02, atol=0)


def test_sums_are_divided_in_the_dtype_of_the_shards_and_only_the_shards_are_held():
    def computes(world):
        with Meter() as meter:
            module = nn.Linear(30, 50, bias=False)
            model = FullyShardedModule(module, world, torch.bfloat16)
            deadline_s = time.monotonic() + 60
            # The backend's thread lets go of what it sent a moment later.
            while (held := meter.live_bytes) > 4 * 30 * 50 // 3 and time.monotonic() < deadline_s:
                time.sleep(0.01)
        (model(torch.ones(1, 30)).sum() * (world.rank == 0)).backward()
        return held, next(model.parameters()).grad

    for held, gradient in run(computes, 3).values:
        assert held == 4 * 30 * 50 // 3
        assert torch.equal(gradient, torch.full((500,), 1 / 3)), "bfloat16 has 0.334"


def test_gradients_are_clipped_by_their_norm_over_all_ranks():
    def clips(world, max_norm):
        model = FullyShardedModule(gpt(), world)
        loss(model, tokens(0).tensor_split(world.size)[world.rank], world.size).backward()
        return model.clip_gradients(max_norm), gradients_of(model)

    model = gpt()
    loss(model, tokens(0)).backward()
    whole = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    for max_norm in (0.01, 1000.0):
        everyone = run(clips, 3, (max_norm,)).values
        found = torch.cat([g for _, gradients in everyone for g in gradients]).norm()
        for norm, _ in everyone:
            torch.testing.assert_close(norm, whole)
        torch.testing.assert_close(found, min(whole, torch.tensor(max_norm).double()))


def test_use_after_release_is_an_error_and_in_debug_it_is_nan():
    def uses(world, debug):
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model = FullyShardedModule(module, world, debug=debug)
        model(torch.ones(1, 3))
        return (torch.ones(1, 3) @ module[0].weight).isnan().all().item()

    assert run(uses, 2, (True,)).values == [True, True]
    with pytest.raises(RankError, match="shapes|size"):
        run(uses, 2, (False,))


def test_an_evaluation_an_error_and_a_pass_without_backward_leave_nothing_gathered():
    def survives(world):
        module = gpt()
        model = FullyShardedModule(module, world)
        share = tokens(0).tensor_split(world.size)[world.rank]
        with torch.no_grad():
            model.eval()(share)
        assert held(model) == 0
        model.train()(share)
        assert held(model) == 0
        handle = module.blocks[2].register_forward_pre_hook(fails)
        with pytest.raises(ZeroDivisionError):
            model(share)
        handle.remove()
        hook = module.blocks[1].register_full_backward_pre_hook(fails)
        with pytest.raises(ZeroDivisionError):
            loss(model, share, world.size).backward()
        hook.remove()
        model.zero_grad()
        loss(model, share, world.size).backward()
        assert held(model) == 0
        return gradients_of(model)

    def held(model):
        return sum(flat.full.untyped_storage().nbytes() for flat in model._flats)

    def fails(*_):
        raise ZeroDivisionError

    gradients = run(survives, 2).values
    model = gpt()
    loss(model, tokens(0)).backward()
    found = torch.cat([each for of_rank in gradients for each in of_rank]).norm()
    whole = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    torch.testing.assert_close(found, whole)


def test_units_without_reshard_and_prefetched_units_are_released_if_backward_does_not_reach_them():
    def survives(world):
        frozen = nn.Linear(3, 3).requires_grad_(False)
        module = nn.Sequential(frozen, nn.Linear(3, 3), nn.Linear(3, 3))
        found = []
        model = FullyShardedModule(module, world, reshard_after_forward=[frozen])
        with torch.no_grad():
            model(torch.ones(1, 3))
        found.append(held(model))
        model(torch.ones(1, 3)).sum().backward()  # goes back to the second layer, and no further
        found.append(held(model))
        return found

    def held(model):
        return sum(flat.full.untyped_storage().nbytes() for flat in model._flats)

    assert run(survives, 2).values == [[0, 0]] * 2


def test_a_failed_backward_pass_leaves_no_gradients():
    def fails_once(world):
        class Sum(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b = (nn.Parameter(torch.ones(2)) for _ in range(2))

            def forward(self, x, is_whole):
                h = x * 1.0
                if is_whole:
                    h.register_hook(lambda _: 1 / 0)
                return h * self.b + (self.a if is_whole else 0)

        model = FullyShardedModule(Sum(), world)
        x = torch.ones(2, requires_grad=True)
        with pytest.raises(ZeroDivisionError):
            model(x, True).sum().backward()
        model(x, False).sum().backward()
        return [x for gradient in gradients_of(model) for x in gradient.tolist()]

    a, b = run(fails_once, 2).values
    assert (a, b) == ([], [1.0, 1.0])  # only the failed pass has used a


def test_whole_parameters_can_be_loaded_on_another_number_of_ranks():
    def loads(world, parameters):
        model = FullyShardedModule(gpt().double(), world)
        model.load_full_parameters({name: 2 * value for name, value in parameters.items()})
        return model.full_parameters()

    parameters = serial(0)
    for found in run(loads, 3, (parameters,)).values:
        for name, value in parameters.items():
            assert torch.equal(found[name], 2 * value)


def loads_half_of_another_model(world):
    model = FullyShardedModule(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)), world)
    before = model.full_parameters()
    wrong = {name: x + 1 for name, x in before.items()} | {"1.bias": torch.ones(4)}
    with pytest.raises(ValueError, match="1.bias has shape"):
        model.load_full_parameters(wrong)
    return before, model.full_parameters()


def test_parameters_of_another_model_are_not_loaded_in_part():
    for before, after in run(loads_half_of_another_model, 2).values:
        assert all(torch.equal(before[name], after[name]) for name in before)


def drops_the_model(world):
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model = FullyShardedModule(module, world)
    model(torch.ones(1, 2)).sum().backward()
    gc.collect()
    gc.disable()
    shards = [weakref.ref(shard) for shard in (*model.shards, *model.parameters())]
    del model
    return [shard() is None for shard in shards], len(module[0]._forward_hooks)


def test_shards_are_freed_with_their_model_even_if_the_wrapped_module_is_kept():
    assert run(drops_the_model, 2).values == [([True] * 6, 0)] * 2


def after_backward(linear, world):
    model = FullyShardedModule(linear, world)
    model(torch.ones(1, 2)).sum().backward()
    return model


def scaled(optimizer):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.step(optimizer)


def stepped_on(make, of):
    """An optimizer that was made before the module was sharded, or `of` the module within."""

    def misuses(linear, world):
        before = make(linear.parameters(), world)
        model = after_backward(linear, world)
        (before if of is None else make(of(model), world)).step()

    return misuses


# Operations of torch on parameters that hold a shard only, or that are trained no more.
OF_TORCH = {
    "scaler of torch": lambda linear, world: scaled(
        torch.optim.SGD(after_backward(linear, world).parameters(), 0.1)
    ),
    "scaler, fused": lambda linear, world: scaled(
        torch.optim.AdamW(after_backward(linear, world).parameters(), fused=True)
    ),
    "clipping of torch": lambda linear, world: nn.utils.clip_grad_norm_(
        after_backward(linear, world).parameters(), 1.0
    ),
    "clipping by foreach": lambda linear, world: nn.utils.clip_grad_norm_(
        after_backward(linear, world).parameters(), 1.0, foreach=True
    ),
    "optimizer before": stepped_on(lambda given, _: torch.optim.AdamW(given), None),
    "the lab's before": stepped_on(lambda given, _: AdamW(given, 1e-3), None),
    "optimizer of the module within": stepped_on(
        lambda given, _: torch.optim.SGD(given, 0.1), lambda model: model.module.parameters()
    ),
    "zero1 before": stepped_on(
        lambda given, world: Zero1Optimizer(given, torch.optim.SGD, world, lr=0.1), None
    ),
    "whole parameters": stepped_on(
        lambda given, _: torch.optim.Adafactor(given), lambda model: model.parameters()
    ),
}


def test_gradients_of_shards_compute_and_travel_as_plain_tensors():
    def computes(world):
        linear = nn.Linear(2, 2, bias=False)
        models = [after_backward(copy.deepcopy(linear), world) for _ in range(3)]
        for model, options in zip(models, ({"foreach": False}, {"foreach": True}, {"fused": True})):
            optimizer = torch.optim.AdamW(model.parameters(), 0.1, **options)
            optimizer.step()
            (states,) = (optimizer.state[p] for p in model.parameters())
            assert all(type(state) is torch.Tensor for state in states.values())
        (gradient,) = gradients_of(models[0])
        assert type(gradient) is not type(gradient + 1) is torch.Tensor
        return gradient, [model.full_parameters()["weight"] for model in models]

    (first, of_loop), (second, _) = run(computes, 2).values
    assert type(first) is torch.Tensor and [*first, *second] == [1.0] * 4
    for weight in of_loop[1:]:
        torch.testing.assert_close(weight, of_loop[0])


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        ("no module", "give a module that is not wrapped yet"),
        ("a stranger", "is not a module inside the module to be sharded"),
        ("nested", "holds blocks.0.mlp, another unit"),
        ("a list", "blocks is a list, which is never called"),
        (
            "no unit",
            "reshard_after_forward has a module that is no unit; units are root unit, blocks.0",
        ),
        ("moved", "a sharded module cannot be moved or converted"),
        ("other shapes", r"rank 1 has \d+ numbers in \d+ tensors"),
        ("sparse", "the gradient of weight is sparse"),
        ("twice", "are shards, or have been sharded"),
        ("wrapped in DDP", "are shards, or have been sharded"),
        ("sharded optimizer", "is a shard of FullyShardedModule"),
        ("replicas", "only this rank is in both"),
        ("crossed replicas", "give ranks with the same rank in groups of the same size"),
        ("backend", "backend='ring': give LIBRARY, RING or SHARED_MEMORY"),
        ("dtype", "compute_dtype='bf16': give a dtype such as torch.float32"),
        ("state_dict", "a sharded module has no state_dict"),
        ("copied", "cannot be copied or pickled; save full_parameters"),
        ("frozen later", "frozen or unfrozen after the module was sharded"),
        ("unfrozen later", "frozen or unfrozen after the module was sharded"),
        ("other shapes loaded", r"weight has shape \(1, 1\) here, and \(2, 2\)"),
        ("other names loaded", "bias, weights: only in these parameters, or only in the module"),
        ("scaler of torch", "torch.amp.GradScaler looks for inf on each rank alone"),
        ("scaler, fused", "torch.amp.GradScaler looks for inf on each rank alone"),
        (
            "clipping of torch",
            "clip_grad_norm_ computes .* Call clip_gradients.max_norm. of the sharded",
        ),
        (
            "clipping by foreach",
            "clip_grad_norm_ computes .* Call clip_gradients.max_norm. of the sharded",
        ),
        ("optimizer before", "parameters of this optimizer are those of a module .* sharded after"),
        ("the lab's before", "parameters of this optimizer are those of a module .* sharded after"),
        ("optimizer of the module within", "parameters of this optimizer are those of a module"),
        ("zero1 before", "parameters of this optimizer are those of a module .* sharded after"),
        ("whole parameters", "torch.optim.Adafactor looks at whole parameters"),
        ("no tensor", "in which there is no tensor with a gradient"),
        ("reentrant", "Call checkpoint.*use_reentrant=False"),
    ],
)
def test_wrong_calls_are_refused_with_their_reason(misuse, message):
    def misuses(world):
        module = gpt()
        block = module.blocks[0]
        if misuse == "no module":
            FullyShardedModule([module], world)
        if misuse == "a stranger":
            FullyShardedModule(module, world, units=[nn.Linear(2, 2)])
        if misuse == "a list":
            FullyShardedModule(module, world, units=[module.blocks])
        if misuse == "nested":
            FullyShardedModule(module, world, units=[block, block.mlp])
        if misuse == "no unit":
            FullyShardedModule(module, world, reshard_after_forward=[block.mlp])
        if misuse == "moved":
            FullyShardedModule(module, world).double()
        if misuse == "other shapes":
            FullyShardedModule(nn.Linear(2 + world.rank, 2), world)
        linear = nn.Linear(2, 2, bias=misuse != "other shapes loaded")
        if misuse == "twice":
            FullyShardedModule(linear, world)
            FullyShardedModule(linear, world)
        if misuse == "wrapped in DDP":
            DDP(FullyShardedModule(linear, world), world)
        if misuse == "sharded optimizer":
            shards = FullyShardedModule(linear, world).parameters()
            Zero1Optimizer(shards, torch.optim.SGD, world)
        if misuse == "replicas":
            FullyShardedModule(linear, world, replicas=world)
        if misuse == "crossed replicas":
            pairs = world.split(world.rank // 2), world.split(int(world.rank in (0, 3)))
            FullyShardedModule(linear, pairs[0], replicas=pairs[1])
        if misuse == "backend":
            FullyShardedModule(linear, world, backend="ring")
        if misuse == "dtype":
            FullyShardedModule(linear, world, "bf16")
        if misuse == "state_dict":
            FullyShardedModule(linear, world).state_dict()
        if misuse == "copied":
            copy.deepcopy(FullyShardedModule(linear, world))
        if misuse == "frozen later":
            model = FullyShardedModule(linear, world)
            linear.requires_grad_(False)
            model(torch.ones(1, 2))
        if misuse == "unfrozen later":
            model = FullyShardedModule(linear.requires_grad_(False), world)
            model.requires_grad_(True)(torch.ones(1, 2))
        if misuse == "other shapes loaded":
            FullyShardedModule(linear, world).load_full_parameters({"weight": torch.ones(1, 1)})
        if misuse == "other names loaded":
            model = FullyShardedModule(linear, world)
            model.load_full_parameters({"weights": torch.ones(1, 1), "weight": torch.ones(2, 2)})
        if misuse in OF_TORCH:
            OF_TORCH[misuse](linear, world)
        if misuse == "no tensor":
            linear.register_forward_hook(lambda *_: SimpleNamespace(y=1))
            FullyShardedModule(linear, world)(torch.ones(1, 2))
        if misuse == "reentrant":
            again = nn.Sequential(linear, nn.Linear(2, 2))
            forward = linear.forward
            linear.forward = lambda x: forward(checkpoint(forward, x, use_reentrant=True))
            FullyShardedModule(again, world)(torch.ones(1, 2, requires_grad=True)).sum().backward()
        if misuse == "sparse":
            model = FullyShardedModule(nn.Embedding(4, 2, sparse=True), world)
            model(torch.tensor([1])).sum().backward()

    with pytest.raises(RankError, match=message):
        run(misuses, 4 if misuse == "crossed replicas" else 2)
