"""A traced step equals the serial one, before and after the passes, and so does every ZeRO level.

A compilation takes a second of a rank's time, so each world size has one launch.
"""

from functools import cache, partial

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from labkit import RankError, run
from labkit.compiled import collectives, compiled_step, full_parameters, simple_fsdp
from labkit.compiled.parametrization import from_wire, to_wire
from labkit.data_parallel import DDP
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.zero import FullyShardedModule, Zero1Optimizer, Zero2Optimizer

CONFIG = GPTConfig(vocab=31, context=6, num_layers=1, hidden=12, num_heads=3, ffn=22)
NUM_SEQUENCES = 7  # divides by none of 2, 3 and 4
TOLERANCE = {"rtol": 1e-11, "atol": 1e-11}


def tokens(number):
    return torch.randint(31, (NUM_SEQUENCES, 6), generator=torch.Generator().manual_seed(number))


def loss(model, x, num_ranks=1):
    """A rank's share counts as much as it has sequences."""
    total = F.cross_entropy(model(x).flatten(0, 1), x.flatten(), reduction="sum")
    return total / (NUM_SEQUENCES * 6) * num_ranks


def gpt():
    return GPT(CONFIG, 0, torch.float64)


def train(model, optimizer, world=None, microbatches=1):
    """Two steps, whose gradients are sums over microbatches; returns the losses of this rank."""
    losses = []
    for step in range(2):
        optimizer.zero_grad()
        for microbatch in range(microbatches):
            x = tokens(step + 100 * microbatch)
            x = x if world is None else x.tensor_split(world.size)[world.rank]
            value = loss(model, x, 1 if world is None else world.size)
            value.backward()
            losses.append(value.detach() / (1 if world is None else world.size))
        optimizer.step()
    return torch.stack(losses)


@cache
def serial(microbatches=1):
    model = gpt()
    losses = train(model, AdamW(model.parameters(), 1e-2), None, microbatches)
    return losses, {name: p.detach() for name, p in model.named_parameters()}


def traced(world, microbatches=1, **options):
    model = simple_fsdp(gpt(), world)
    step = compiled_step(model, world, **options)
    losses = train(step, AdamW(model.parameters(), 1e-2), world, microbatches)
    counts = {name: len(collectives(graph)) for name, graph in step.changed.items()}
    return world.all_reduce(losses), full_parameters(model), counts


def assert_equals(found, microbatches=1):
    losses, parameters = found[:2]
    expected_losses, expected = serial(microbatches)
    torch.testing.assert_close(losses, expected_losses, **TOLERANCE)
    for name, value in expected.items():
        torch.testing.assert_close(parameters[name], value, **TOLERANCE, msg=name)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_step_with_buckets_and_overlap_equals_one_process(world_size):
    # 3 KB: several buckets, across the borders of modules.
    for found in run(partial(traced, bucket_bytes=3000), world_size, timeout=240).values:
        assert_equals(found)


def variants(world):
    return {
        "traced": traced(world, bucket_bytes=None, ahead=0),
        "bucketed, kept": traced(
            world, bucket_bytes=2**20, ahead=None, reshard_after_forward=False, microbatches=2
        ),
    }


def test_the_number_of_collectives_changes_and_the_result_does_not():
    found = run(variants, 3, timeout=240).values[1]
    assert_equals(found["traced"])
    assert_equals(found["bucketed, kept"], microbatches=2)
    reads = 8 + 4  # a block; the embedding's two tables, the norm and the tied head
    # Backward of an embedding needs no table: two gathers fewer.
    assert found["traced"][2] == {"forward": reads, "backward": reads - 2 + reads}
    assert found["bucketed, kept"][2] == {"forward": 1, "backward": 1}


def torchs(world, sync_each):
    model = gpt()
    mesh = init_device_mesh("cpu", (world.size,))
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for step in range(2):
        optimizer.zero_grad()
        for microbatch in range(2):
            model.set_requires_gradient_sync(sync_each or microbatch == 1)
            x = tokens(step + 100 * microbatch).tensor_split(world.size)[world.rank]
            value = loss(model, x, world.size)
            value.backward()
            losses.append(value.detach() / world.size)
        optimizer.step()
    whole = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    return world.all_reduce(torch.stack(losses)), whole


def with_optimizer(world, make):
    model = gpt()
    optimizer = make(model.parameters(), AdamW, world, learning_rate=1e-2)
    losses = train(model, optimizer, world, 2)
    return world.all_reduce(losses), dict(model.named_parameters())


def levels(world):
    ddp = DDP(gpt(), world)
    zero3 = FullyShardedModule(gpt(), world)
    found = {
        "ddp": (
            world.all_reduce(train(ddp, AdamW(ddp.parameters(), 1e-2), world, 2)),
            dict(ddp.module.named_parameters()),
        ),
        "zero1": with_optimizer(world, Zero1Optimizer),
        "zero2": with_optimizer(world, Zero2Optimizer),
        "zero3": (
            world.all_reduce(train(zero3, AdamW(zero3.parameters(), 1e-2), world, 2)),
            zero3.full_parameters(),
        ),
        "fully_shard": torchs(world, True),
        "fully_shard, reduced once": torchs(world, False),
    }
    return {
        name: (losses, {k: v.detach() for k, v in whole.items()})
        for name, (losses, whole) in found.items()
    }


@pytest.mark.parametrize("world_size", [2, 3])
def test_with_accumulation_all_levels_give_the_losses_of_one_process(world_size):
    for name, found in run(levels, world_size, timeout=240).values[0].items():
        try:
            assert_equals(found, microbatches=2)
        except AssertionError as error:
            raise AssertionError(name) from error


def rounded(world, wire):
    torch.manual_seed(0)
    module = torch.nn.Linear(13, 5)
    before = module.weight.detach().clone()
    simple_fsdp(module, world, wire=wire)
    off = (module.weight.detach() - before).abs()
    module.weight.sum().backward()
    return before, off, module.parametrizations.weight.original.grad


@pytest.mark.parametrize(
    ("wire", "largest"),
    [("whole", 0), ("int8", 0.5 / 127), ("float8", 1 / 16)],
)
def test_a_gather_of_8_bits_rounds_what_is_read_and_not_the_gradient(wire, largest):
    for before, off, gradient in run(partial(rounded, wire=wire), 3).values:
        # int8 has equal steps, of each rank's largest number; float8 has 3 bits behind the first.
        scale = before.abs() if wire == "float8" else before.abs().max()
        assert (off <= 1.001 * largest * scale + 1e-4).all()
        assert off.any() == (wire != "whole")
        assert gradient.abs().max() == 1


def test_a_message_of_8_bits_has_a_byte_for_each_number_and_a_scale():
    shard = torch.tensor([0.0, -3.0, 1.5])
    for codes in (torch.int8, torch.float8_e4m3fn):
        message = to_wire(shard, codes)
        assert (message.dtype, message.numel()) == (torch.uint8, 3 + 4)
        torch.testing.assert_close(
            from_wire(message[None], codes, torch.float32), shard, rtol=0.04, atol=0.013
        )
        assert not from_wire(to_wire(torch.zeros(3), codes)[None], codes, torch.float32).any()


def grows(world):
    """Rank 0 gets a batch of another size in the second step, and compiles again alone."""
    module = simple_fsdp(torch.nn.Linear(4, 3, bias=False, dtype=torch.float64), world)
    step = compiled_step(module, world)
    shard = module.parametrizations.weight.original
    found = []
    for size in (2, 3 if world.rank == 0 else 2):
        module.zero_grad()
        step(torch.ones(size, 4, dtype=torch.float64)).sum().backward()
        found.append(shard.grad[0].item())
    return found, len(step.changed)


def test_a_rank_may_compile_again_alone():
    (first, graphs), (second, others) = run(grows, 2, timeout=120).values
    assert first == second == [2.0, 2.5]  # the mean of the ranks' batches
    assert (graphs, others) == (4, 2)


def differs(world):
    layers = [torch.nn.Linear(4, 4, bias=False) for _ in range(2)]
    module = simple_fsdp(torch.nn.ModuleList(layers), world)
    rank = world.rank

    def forward(x):
        return module[1](module[0](x)) if rank == 0 else module[0](x)

    compiled_step(forward, world, bucket_bytes=None)(torch.ones(1, 4))


def test_ranks_whose_graphs_differ_get_an_error_instead_of_a_hang():
    with pytest.raises(RankError, match="rank 0: 2, rank 1: 1.*same module"):
        run(differs, 2, timeout=120)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"wire": "float4"}, ValueError, "wire='float4'.*whole, float8, int8"),
        ({"compute_dtype": torch.int8}, TypeError, "compute_dtype"),
    ],
)
def test_options_are_checked_where_they_enter(options, error, message):
    def sharded(world):
        with pytest.raises(error, match=message):
            simple_fsdp(torch.nn.Linear(2, 2), world, **options)

    run(sharded, 1)
