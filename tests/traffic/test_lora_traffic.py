"""Bytes that adapters send and hold, by labkit.calc: DDP, ZeRO-3, tensor parallelism, quantised."""

from collections import Counter

import pytest
import torch

from labkit import Group, calc, run
from labkit.data import Batch
from labkit.data_parallel import NaiveDDP
from labkit.lora import add_adapter, measure_methods, prepare, shard_linears
from labkit.model import GPT, GPTConfig
from labkit.train import loss
from labkit.zero import FullyShardedModule

# Sizes that 4 divides: padding is in no formula.
CONFIG = GPTConfig(vocab=64, context=16, num_layers=2, hidden=32, num_heads=4)
RANK = 4
NUM_ADAPTERS = 2 * 2 * RANK * (32 + 32)  # query and value of two layers
TABLES = (64 + 16) * 32 + 5 * 32  # embeddings and norms, which stay in float32
BLOCKS = GPT(CONFIG).num_parameters - TABLES


def tokens(num_sequences):
    windows = torch.randint(64, (num_sequences, 17), generator=torch.Generator().manual_seed(0))
    return Batch(windows[:, :-1], windows[:, 1:])


@pytest.fixture(scope="module", params=[1, 4])
def methods(request):
    result = run(measure_methods, request.param, (CONFIG, tokens(8), RANK))
    return request.param, result


def test_only_adapters_have_gradients_states_and_traffic(methods):
    num_ranks, result = methods
    for method, usage in result.values[0].items():
        trained = GPT(CONFIG).num_parameters if method == "full" else NUM_ADAPTERS
        states = calc.model_state_bytes(trained, "fp32")
        held = usage.at_end
        assert held["gradients"] == states["gradients"]
        assert held["optimizer states"] == states["moments"]
        sent = sum(each.sent_bytes for each in result.timeline[0].within(f"{method}, step 1"))
        assert sent == calc.step_traffic_bytes("ddp", trained, num_ranks, itemsize=4)


def test_weights_of_the_base_take_their_bits_and_scales(methods):
    _, result = methods
    beside = {"full": 0, "LoRA": 4 * NUM_ADAPTERS}
    for method, usage in result.values[0].items():
        held = usage.at_end
        bits = {"LoRA, int8 base": 8, "LoRA, int4 base": 4}.get(method)
        if bits is None:
            assert held["parameters"] == 4 * (BLOCKS + TABLES) + beside[method]
        else:  # a bfloat16 scale for each group of 32 weights
            assert held["parameters"] == 4 * (TABLES + NUM_ADAPTERS)
            assert held["buffers"] == BLOCKS * bits / 8 + BLOCKS / 32 * 2


def test_a_quantised_base_keeps_no_weight_for_backward(methods):
    _, result = methods
    kept = {name: usage.peak_of("activations") for name, usage in result.values[0].items()}
    assert kept["LoRA, int4 base"] == kept["LoRA, int8 base"] == kept["LoRA"] < kept["full"]


def data_parallel_steps(world: Group, broadcast_buffers: bool):
    share = tokens(4 * world.size).share(world.rank, world.size)
    model = FullyShardedModule(prepare(GPT(CONFIG), "LoRA", RANK), world)
    world.barrier()
    with world.region("zero3"):
        loss(model, share).backward()
    model = NaiveDDP(
        prepare(GPT(CONFIG), "LoRA, int4 base", RANK), world, broadcast_buffers=broadcast_buffers
    )
    with world.region("int4"):
        loss(model, share).backward()
        model.reduce_gradients()


@pytest.mark.parametrize("num_ranks", [1, 4])
def test_zero3_gathers_all_and_reduces_the_adapters(num_ranks):
    """A unit has a flat tensor for its frozen and one for its trained parameters."""
    timeline = run(data_parallel_steps, num_ranks, (True,)).timeline[1 % num_ranks]
    whole = calc.step_traffic_bytes("zero3", BLOCKS + TABLES + NUM_ADAPTERS, num_ranks, itemsize=4)
    reduced = calc.step_traffic_bytes("zero3", NUM_ADAPTERS, num_ranks, itemsize=4)
    predicted = whole["all-gather"] + reduced["reduce-scatter"]
    assert sum(each.sent_bytes for each in timeline.within("zero3")) == predicted


def test_ddp_broadcasts_codes_that_are_buffers():
    codes = BLOCKS / 2 + BLOCKS / 32 * 2
    sent = {}
    for broadcast in (True, False):
        timeline = run(data_parallel_steps, 2, (broadcast,)).timeline[0]
        sent[broadcast] = sum(each.sent_bytes for each in timeline.within("int4"))
    assert sent[False] == calc.step_traffic_bytes("ddp", NUM_ADAPTERS, 2, itemsize=4)
    assert sent[True] - sent[False] == codes


def tensor_parallel_step(world: Group, targets: tuple[str, ...]):
    model = shard_linears(GPT(CONFIG), world)
    add_adapter(model, "job", RANK, targets=targets)
    with world.region("forward"):
        value = loss(model, tokens(2))
    with world.region("backward"):
        value.backward()


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_tensor_parallel_adapters_add_one_all_reduce_of_the_whole_half(num_ranks):
    targets = ("query", "down")
    timeline = run(tensor_parallel_step, num_ranks, (targets,)).timeline[0]
    features = 2 * 16 * 32 * 4  # B T D numbers
    of_query, of_down = RANK * 32 * 4, RANK * 32 * 4  # A of a column layer, B of a row layer

    def sent(count_by_size):
        return sum(
            count * calc.collective("all_reduce", "ring", num_ranks, size).sent_bytes
            for size, count in count_by_size.items()
        )

    forward, backward = (timeline.within(name) for name in ("forward", "backward"))
    assert {each.kind for each in forward + backward} == {"all_reduce"}
    # Forward is that of the base: out and down of two blocks.
    assert sum(each.sent_bytes for each in forward) == sent({features: 4})
    # Backward: x's gradient for up of two blocks and for query, key and value of the second. The
    # first block's attention has no trained layer below it. And one for each of four adapters.
    assert sum(each.sent_bytes for each in backward) == sent({features: 5, of_query: 4})
    assert len(backward) == 9 and of_query == of_down
    sizes = Counter(each.sent_bytes for each in backward)
    assert sorted(sizes.values()) == [4, 5]
