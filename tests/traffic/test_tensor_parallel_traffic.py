"""Collectives and bytes of tensor parallelism, by the journal, and what ranks keep for backward.

Predicted by formulas that were written without looking at the layers: the example's table, whose
rows are all asserted here.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit import calc, run
from labkit.calc.traffic.tensor import tensor_parallel_collectives
from labkit.data import Batch
from labkit.model import GPT, MLP, GPTConfig
from labkit.tensor_parallel import (
    ParallelMLP,
    Replicated,
    SequenceSharded,
    column_linear,
    parallelize,
)

_PATH = Path(__file__).parents[2] / "examples" / "tensor_parallel.py"
_SPEC = importlib.util.spec_from_file_location("example_of_tensor_parallelism", _PATH)
table = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(table)
table.CONFIG = replace(table.CONFIG, num_layers=2)  # with fewer bytes to send


@pytest.fixture(scope="module", params=[1, 4])
def num_ranks(request):
    return request.param


@pytest.fixture(scope="module")
def rows(num_ranks):
    """By form: quantity -> (predicted, measured)."""
    return {
        form: {
            quantity: (predicted, measured)
            for _, _, quantity, predicted, measured in table.rows_of(num_ranks, form)
        }
        for form in (False, True)
    }


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["replicated", "sequence"])
def test_collectives_and_bytes_are_what_calc_says(rows, sequence_parallel):
    for quantity, (predicted, measured) in rows[sequence_parallel].items():
        if quantity != "activations":
            assert predicted == measured, quantity


@pytest.mark.parametrize("sequence_parallel", [False, True], ids=["replicated", "sequence"])
def test_activations_are_those_of_the_closed_form(rows, sequence_parallel):
    """Left out there: two statistics of each norm's rows, and which token is whose; under 1%."""
    predicted, measured = rows[sequence_parallel]["activations"]
    assert predicted <= measured <= 1.01 * predicted


def test_sequence_parallelism_makes_all_activations_fall_by_the_number_of_ranks(rows, num_ranks):
    predicted, _ = rows[True]["activations"]
    assert predicted == table.predicted_activations(1, False) / num_ranks
    if num_ranks > 1:
        assert rows[True]["activations"][1] < rows[False]["activations"][1]


def test_the_other_order_of_the_layers_sends_four_and_a_half_times_as_much(num_ranks):
    (_, _, _, *paper), (_, _, _, *swapped) = table.rows_of_two_layers(num_ranks)
    assert paper[0] == paper[1] and swapped[0] == swapped[1]
    assert swapped[1] == 4.5 * paper[1]


COPIES = GPTConfig(context=16, num_layers=2, hidden=48, num_heads=12, num_kv_heads=2)


def backward_of(world):
    model = parallelize(GPT(COPIES), world)
    tokens_BT = torch.arange(2 * 17).view(2, 17)
    loss = model.loss(Batch(tokens_BT[:, :-1], tokens_BT[:, 1:]))
    world.barrier()
    with world.region("backward"):
        loss.backward()
    return len({block.attention.copies for block in model.blocks})


@pytest.mark.parametrize("world_size", [2, 4])
def test_copied_heads_add_up_their_gradients_layer_by_layer_in_one_group(world_size):
    result = run(backward_of, world_size)
    assert result.values == [1] * world_size
    operations = result.timeline[0].within("backward")
    copies = world_size // 2
    counts = tensor_parallel_collectives(2, kv_copies=copies)["backward"]
    assert {"all_reduce": len(operations)} == counts
    model = calc.ModelConfig(
        layers=2, hidden=48, heads=12, kv_heads=2, vocab=256, context=16, biases=False
    )
    said = calc.tensor_parallel_traffic_bytes(model, 2, world_size, itemsize=4)
    parts = [part for name, part in said.parts.items() if "backward" in name or "cop" in name]
    assert sum(op.sent_bytes for op in operations) == float(sum(parts) + said["head"])


def test_without_a_wire_a_cpu_sums_by_the_backend_and_shards_by_the_ring():
    """gloo's reduce-scatter would be a whole all-reduce."""
    kinds = {
        form: {op.kind for op in run(one_half_of_a_block, 2, (form,)).timeline[0].operations}
        for form in ("replicated", "sequence-sharded")
    }
    assert kinds == {"replicated": {"all_reduce"}, "sequence-sharded": {"send", "recv"}}


def one_half_of_a_block(world, form):
    torch.manual_seed(0)  # the same MLP on every rank
    mlp = ParallelMLP(MLP(GPTConfig(hidden=8, num_heads=1)), world)
    layout = Replicated(world) if form == "replicated" else SequenceSharded(world, 2, 6)
    shape = (2, 6, 8) if form == "replicated" else (layout.num_rows, 8)
    x = torch.ones(shape, requires_grad=True)
    with world.region("forward"):
        y = mlp(x, layout)
    with world.region("backward"):
        y.sum().backward()


def test_a_half_of_a_block_talks_once_forward_and_once_backward_and_never_in_between():
    result = run(one_half_of_a_block, 4, ("replicated",))
    for timeline in result.timeline:
        for phase in ("forward", "backward"):
            (operation,) = timeline.within(phase)
            assert operation.kind == "all_reduce"
            assert operation.payload_bytes == 2 * 6 * 8 * 4


def test_backward_starts_the_sum_of_gradients_before_it_computes_those_of_the_weights():
    """By counts, not by a clock: nothing waits for the all-reduce until all products are made."""
    result = run(order_of_backward, 2)
    for events in result.values:
        assert events == ["whole", "mm", "all_reduce", "whole waited", "mm", "waited"]


def order_of_backward(world):
    """The products of one column layer's backward, and when its sum was started and awaited."""
    events = []

    class Watched(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = function.overloadpacket.__name__
            if name in ("mm", "bmm", "addmm"):
                events.append("mm")
            return function(*args, **(kwargs or {}))

    class Noted(Replicated):
        def gather(self, x):
            events.append("whole")

            def waited():
                events.append("whole waited")
                return x

            return waited

        def reduce(self, partial):
            finish = super().reduce(partial)
            events.append("all_reduce")

            def waited():
                events.append("waited")
                return finish()

            return waited

    x = torch.ones(3, 4, requires_grad=True)
    weight = nn.Parameter(torch.ones(2, 4))
    (y,) = column_linear(x, Noted(world), weight)
    events.clear()
    with Watched():
        y.backward(torch.ones_like(y))
    return events


def test_formulas_agree_with_the_numbers_of_the_papers():
    """Megatron-LM: 4 all-reduces for each layer; Korthikanti: as many bytes with sequence shards,
    but for the inputs that are gathered once more."""
    config = calc.ModelConfig(
        layers=48, hidden=1000, heads=8, vocab=512, context=1024, biases=False
    )
    whole = calc.tensor_parallel_traffic_bytes(config, 1, 8)
    layers = float(whole["layers, forward"] + whole["layers, backward"])
    assert layers == 48 * 4 * calc.collective("all_reduce", "ring", 8, 1024 * 1000 * 2).sent_bytes
    shards = calc.tensor_parallel_traffic_bytes(config, 1, 8, sequence_parallel=True)
    assert shards["layers, forward"] == whole["layers, forward"]
    assert float(shards["layers, backward"]) == 1.5 * float(whole["layers, backward"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tp": 0}, "0"),
        ({"microbatch": 0}, "microbatch|0 ranks"),
        ({"config": "mixtral-8x7b"}, "experts.*give a dense model"),
        ({"config": "llama2-70b", "tp": 3}, "tp=3 cannot share 64 heads.*1, 2, 4, 8, 16, 32, 64"),
        ({"itemsize": 0}, "itemsize"),
    ],
)
def test_arguments_that_make_no_sense_are_named(arguments, words):
    given = {"config": "gpt2", "microbatch": 1, "tp": 2} | arguments
    with pytest.raises((TypeError, ValueError), match=words):
        calc.tensor_parallel_traffic_bytes(**given)
