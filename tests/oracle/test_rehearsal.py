"""Every strategy by nccl's rules: one queue of operations per rank, and poisoned results.

warm_ranks.py puts the runs of this file into that mode; `--rehearse-nccl` does so for all of
tests/oracle. Each strategy trains for some steps here, and has to follow the serial run.
"""

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch

from labkit import (
    RunTimeout,
    collectives,
    combined,
    context_parallel,
    data_parallel,
    moe,
    pipeline,
    run,
    tensor_parallel,
)
from labkit.collectives import ring_all_reduce
from labkit.context_parallel import gathered_attention, ring_attention, ulysses_attention
from labkit.data_parallel import DDP, BucketedDDP, NaiveDDP
from labkit.data_parallel.overlapped import OverlappedDDP
from labkit.model import GPT, GPTConfig
from labkit.pipeline import gpipe, interleaved, one_f_one_b, zero_bubble_h1, zero_bubble_v
from labkit.train import TrainConfig, Trained, copy_parameters, fit, loss, train_serial
from labkit.zero import RING, FullyShardedModule, Zero1Optimizer, Zero2Optimizer

CONFIG = GPTConfig(vocab=256, context=9, num_layers=2, hidden=16, num_heads=4, ffn=22)
SETTINGS = TrainConfig(
    num_sequences=9, num_steps=2, optimizer="sgd", learning_rate=0.1, dtype=torch.float64
)
MOE = moe.MoEConfig(num_experts=4)
LIMIT = 1e-12  # float64: rounding is far below, a wrong or poisoned number far above
ROWS = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": partial(interleaved, virtual=2),
    "zero bubble": zero_bubble_h1,
    "zero bubble, a V": zero_bubble_v,
}


def deep(world_size):
    """Enough layers for two stages on each rank; the embedding and the head are layers, too."""
    return replace(CONFIG, num_layers=2 * world_size - 2)


def zero(world, shard):
    """`shard`: from a module to the one that is called, and the optimizer."""
    module = GPT(CONFIG, SETTINGS.seed, SETTINGS.dtype)
    model, optimizer = shard(module)

    def step(batch):
        share = batch.share(world.rank, world.size)
        value = loss(model, share) * (len(share.inputs_BT) / len(batch.inputs_BT))
        (value * world.size).backward()
        optimizer.step()
        optimizer.zero_grad()
        return value.item()

    losses = world.all_reduce(torch.tensor(fit(step, CONFIG, SETTINGS), dtype=torch.float64))
    whole = model.full_parameters() if model is not module else copy_parameters(module)
    return Trained(losses.tolist(), whole)


def all_strategies(world):
    """Name -> what it has trained."""
    kind, how = SETTINGS.optimizer_class()
    on = (world, CONFIG, SETTINGS)

    def fully_sharded(module, **options):
        model = FullyShardedModule(module, world, **options)
        return model, kind(model.parameters(), **how)

    def optimizer_of(sharded, **options):
        return lambda module: (module, sharded(module.parameters(), kind, world, **options, **how))

    found = {
        "zero2, ring": zero(world, optimizer_of(Zero2Optimizer, backend=RING)),
        "zero3, ring": zero(world, partial(fully_sharded, backend=RING)),
        "tp, ring": tensor_parallel.train(*on, sequence_parallel=True, backend=RING),
        "cp, ring": context_parallel.train(*on, attention=ring_attention),
    }
    if world.size == 2:  # collectives alone: their order does not depend on the number of ranks
        found |= {
            "naive": data_parallel.train(*on, strategy=NaiveDDP),
            "bucketed": data_parallel.train(*on, strategy=BucketedDDP),
            "overlapped": data_parallel.train(*on, strategy=OverlappedDDP),
            "ddp": data_parallel.train(*on, strategy=DDP),
            "ddp, ring": data_parallel.train(*on, all_reduce=ring_all_reduce, strategy=DDP),
            "zero1": zero(world, optimizer_of(Zero1Optimizer)),
            "zero2": zero(world, optimizer_of(Zero2Optimizer)),
            "zero3": zero(world, fully_sharded),
            "tp": tensor_parallel.train(*on),
            "tp, sequence": tensor_parallel.train(*on, sequence_parallel=True),
            "ulysses": context_parallel.train(*on, attention=ulysses_attention),
            "cp, gathered": context_parallel.train(*on, attention=gathered_attention),
        }
    # On 4 ranks those with messages of their own: gpipe's are 1F1B's, and those of H1 nearly.
    for row in ROWS if world.size == 2 else ("1f1b", "interleaved", "zero bubble, a V"):
        found[row] = pipeline.train(world, deep(world.size), SETTINGS, ROWS[row], 4)
    if world.size == 4:
        found["3D"] = combined.train(*on, dp=2, pp=2, max_norm=100)
        found["3D, tp"] = combined.train(*on, tp=2, pp=2, row=ROWS["interleaved"])
    found["moe"] = moe.train(world, CONFIG, MOE, SETTINGS)
    return found


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_strategy_follows_the_serial_run(world_size):
    dense, in_stages = (train_serial(each, SETTINGS) for each in (CONFIG, deep(world_size)))
    experts = moe.train_serial(CONFIG, MOE, SETTINGS, num_groups=world_size)
    for found in run(all_strategies, world_size, timeout=600).values:
        for name, trained in found.items():
            serial = experts if name == "moe" else in_stages if name in ROWS else dense
            assert trained.losses == pytest.approx(serial.losses, abs=LIMIT), name
            assert trained.largest_difference(serial) < LIMIT, name


def all_collectives(world):
    """Return each collective's result for x * (rank + 1), by name."""
    x = torch.arange(1, 1002.0) * (world.rank + 1)
    fast, slow = collectives.two_tiers(world, 2)
    blocks = {"group": world, "block_bytes": 400}
    chunks = collectives.ring_reduce_scatter(x, world)
    return (
        {
            "ring": collectives.ring_all_reduce(x, world),
            "ring, in place": collectives.ring_all_reduce(x.clone(), world, out=x.clone()),
            "ring, two phases": collectives.ring_all_gather(chunks, len(x), world),
            "halving and doubling": collectives.halving_doubling_all_reduce(x, **blocks),
            "tree": collectives.tree_all_reduce(x, **blocks),
            "two trees": collectives.double_tree_all_reduce(x, **blocks),
            "two tiers": collectives.hierarchical_all_reduce(x, fast, slow),
            "backend": world.all_reduce(x),
        },
        {
            "ring": collectives.ring_broadcast(x, 1, **blocks),
            "tree": collectives.tree_broadcast(x, 1, **blocks),
            "backend": world.broadcast(x, 1),
        },
        collectives.pairwise_all_to_all(x[:8], world),
    )


@pytest.mark.parametrize("world_size", [2, 4])
def test_every_collective_gives_what_it_should(world_size):
    x = torch.arange(1, 1002.0)
    for rank, (sums, broadcasts, exchanged) in enumerate(run(all_collectives, world_size).values):
        for name, total in sums.items():
            assert torch.equal(total, x * sum(range(1, world_size + 1))), name
        for name, copy in broadcasts.items():
            assert torch.equal(copy, 2 * x), name
        own = x[:8].chunk(world_size)[rank]
        assert torch.equal(exchanged, torch.cat([own * (r + 1) for r in range(world_size)]))


def two_groups(world, swaps):
    """Both ranks start an all-reduce on each group, rank 1 perhaps in the other order.

    All wait in one order: what hangs is the stream, and not the program.
    """
    pendings, groups = {}, [world.split(0), world.split(0)]
    for group in reversed(groups) if swaps and world.rank else groups:
        pendings[group] = group.all_reduce(torch.ones(1), wait=False)
    return [pendings[group].wait().item() for group in groups]


def facing(world, together):
    """Both ranks send, and then receive."""
    peer, x = 1 - world.rank, torch.ones(1) * world.rank
    with world.together() if together else nullcontext():
        pendings = [world.isend(x, peer), world.irecv(torch.empty(1), peer)]
    return [pending.wait() for pending in pendings][1].item()


def early(world):
    """Results before and after the wait, of floats, integers and a message."""
    out, numbers, buffer = torch.ones(2), torch.ones(2, dtype=torch.int64), torch.ones(2)
    pendings = [world.all_reduce(each, out=each, wait=False) for each in (out, numbers)]
    with world.together():
        pendings.append(world.isend(torch.ones(2), 1 - world.rank))
        pendings.append(world.irecv(buffer, 1 - world.rank))
    before = [out.tolist(), numbers.tolist(), buffer.tolist()]
    for pending in pendings:
        pending.wait()
    return before, [out.tolist(), numbers.tolist(), buffer.tolist()]


@pytest.mark.parametrize(("program", "mistake"), [(two_groups, True), (facing, False)])
def test_what_hangs_on_nccl_hangs_and_is_reported(program, mistake):
    with pytest.raises(RunTimeout) as caught:
        run(program, 2, (mistake,), timeout=2)
    assert program.__name__ in str(caught.value)
    run(program, 2, (not mistake,))


def test_a_result_is_poisoned_until_it_is_waited_for():
    for before, after in run(early, 2).values:
        floats, numbers, received = before
        assert all(map(math.isnan, [*floats, *received]))
        assert numbers == [-1, -1]
        assert after == [[2, 2], [2, 2], [1, 1]]
