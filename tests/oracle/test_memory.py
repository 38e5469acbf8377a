"""Measured memory: what is followed, what it is called, and that calc predicts it."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from labkit import calc, run
from labkit.memory import KINDS, Meter, Usage, tag_tensors
from labkit.model import GPT, GPTConfig
from labkit.zero import FullyShardedModule

MIB = torch.float32.itemsize * 2**18


def mib(n=1):
    return torch.ones(n, 2**18)


def test_bytes_are_alive_from_the_operation_until_the_last_reference_is_gone():
    with Meter() as meter:
        x = mib(3)
        view = x[1:]
        assert meter.live_bytes == 3 * MIB, "a storage counts once, whatever views there are"
        del x
        assert meter.live_bytes == 3 * MIB, "a view keeps all of it"
        y = view + 1
        assert meter.live_bytes == 5 * MIB
        del view
        assert meter.live_bytes == 2 * MIB
        del y
    assert meter.usage.at_end == dict.fromkeys(KINDS, 0)
    assert meter.usage.peak_bytes == 5 * MIB
    assert meter.usage.times_s == sorted(meter.usage.times_s)


def test_what_existed_before_is_alive_at_one_time():
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    with Meter(module, optimizer) as meter:
        before = len(meter.usage.times_s)
        assert before > 8 and len(set(meter.usage.times_s)) == 1


def test_a_storage_that_shrinks_under_its_tensor_is_noticed():
    with Meter() as meter:
        x = mib(2)
        x.untyped_storage().resize_(0)
        assert meter.live_bytes == 0
        x.untyped_storage().resize_(2 * MIB)
        assert meter.live_bytes == 2 * MIB


def test_what_shrinks_last_of_all_is_noticed_on_leaving():
    with Meter() as meter:
        x = mib(2)
        x.untyped_storage().resize_(0)
    assert meter.usage.at_end == dict.fromkeys(KINDS, 0)


def test_a_tensor_without_numbers_has_no_bytes():
    with Meter() as meter:
        x = torch.empty(2**20, device="meta")
        assert x.numel() and meter.live_bytes == 0


def test_nothing_is_kept_alive_by_being_followed():
    with Meter() as meter:
        for _ in range(5):
            mib()
        assert meter.live_bytes == 0
    assert meter.usage.peak_bytes == MIB


def test_marked_storages_count_as_what_they_are_from_their_allocation_on():
    with Meter() as meter:
        bucket = mib()
        scratch = mib()
        meter.mark(bucket, "buffers")
    assert meter.usage.at_peak == {**dict.fromkeys(KINDS, 0), "buffers": MIB, "other": MIB}
    assert scratch.numel()
    with pytest.raises(ValueError, match="kind='bucket': give one of parameters, gradients"):
        meter.mark(bucket, "bucket")


def test_what_is_alive_already_counts_from_the_start():
    layer = nn.Linear(2**9, 2**9, bias=False)
    layer.register_buffer("scale", mib())
    with Meter(layer) as meter:
        mib(2)  # gone before anybody asks
    usage = meter.usage
    assert usage.peak_bytes == 4 * MIB
    assert (usage.at_peak["parameters"], usage.at_peak["buffers"]) == (MIB, MIB)


def test_of_equal_peaks_the_first_counts():
    nothing = dict.fromkeys(KINDS, [0, 0, 0])
    usage = Usage([0.0, 1.0, 2.0], {**nothing, "buffers": [5, 0, 0], "other": [0, 0, 5]})
    assert usage.at_peak == {**dict.fromkeys(KINDS, 0), "buffers": 5}


def test_of_several_kinds_the_first_counts_in_whatever_order_they_are_said():
    for kinds in (("buffers", "activations"), ("activations", "buffers")):
        with Meter() as meter:
            x = mib()
            for kind in kinds:
                meter.mark(x, kind)
        assert meter.usage.at_end["buffers"] == MIB


def test_a_linear_layer_saves_its_input_and_no_more():
    layer, x = nn.Linear(2**10, 2**8, bias=False), torch.ones(2**8, 2**10)
    with Meter(layer) as meter:
        y = layer(x)
        held = meter.usage.at_end
    assert held["parameters"] == layer.weight.nbytes
    assert held["activations"] == x.nbytes, "of its input the weight's gradient is made"
    assert held["other"] == y.nbytes, "nobody needs it for backward yet"


def trained(config, batch, optimizer_class=torch.optim.AdamW, num_steps=2):
    gpt = GPT(GPTConfig(**config))
    optimizer = optimizer_class(gpt.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (batch, gpt.config.context))
    with Meter(gpt, optimizer) as meter:
        for _ in range(num_steps):
            logits = gpt(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())
            del logits
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return gpt, meter.usage


SIZES = [
    {"num_layers": 4, "hidden": 128, "num_heads": 4, "context": 128},
    {"num_layers": 3, "hidden": 96, "num_heads": 6, "context": 100, "ffn": 200},
    {"num_layers": 6, "hidden": 64, "num_heads": 2, "context": 64},
]


@pytest.mark.parametrize(
    ("optimizer_class", "recipe"),
    [(torch.optim.AdamW, "fp32"), (torch.optim.SGD, "sgd_plain")],
)
def test_model_states_are_those_of_the_calculator_to_the_byte(optimizer_class, recipe):
    gpt, usage = trained(SIZES[1], 2, optimizer_class)
    states = calc.model_state_bytes(gpt.num_parameters, recipe)
    num_steps = sum(1 for _ in gpt.parameters()) * 4 if recipe == "fp32" else 0
    assert usage.peak_of("parameters") == states["parameters"]
    assert usage.peak_of("gradients") == states["gradients"]
    moments = int(states.parts.get("moments", 0))
    assert usage.peak_of("optimizer states") == moments + num_steps, "torch counts steps per tensor"
    assert usage.at_end["gradients"] == 0


@pytest.mark.parametrize("sizes", SIZES)
def test_activations_are_those_of_the_calculator_within_3_percent(sizes):
    batch = 4
    gpt, usage = trained(sizes, batch)
    c = gpt.config
    config = calc.ModelConfig(
        layers=c.num_layers,
        hidden=c.hidden,
        heads=c.num_heads,
        ffn=c.ffn,
        vocab=c.vocab,
        context=c.context,
        biases=False,
    )
    layers = calc.activation_bytes(config, batch, flash=True, itemsize=4, dropout=False)
    log_softmax = calc.logits_bytes(config, batch, itemsize=4)["log-softmax"]
    last = 2 * batch * c.context * c.hidden * 4  # inputs of the last norm and of the head
    assert usage.peak_of("activations") == pytest.approx(
        float(layers) + float(log_softmax) + last, rel=0.03
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_loss_takes_what_the_calculator_says_as_backward_begins(dtype):
    hidden, vocab, num_tokens = 64, 4096, 100
    config = calc.ModelConfig(layers=1, hidden=hidden, heads=1, vocab=vocab, context=num_tokens)
    head = nn.Linear(hidden, vocab, bias=False, dtype=dtype)
    x, targets = torch.randn(num_tokens, hidden, dtype=dtype), torch.randint(vocab, (num_tokens,))
    with Meter(head) as meter:
        logits = head(x)
        F.cross_entropy(logits.float(), targets).backward()
    held = meter.usage.at_peak
    kept = calc.logits_bytes(config, 1, itemsize=dtype.itemsize)
    predicted = kept + calc.loss_gradient_bytes(config, 1)
    assert held["gradients"] == 0, "the peak is before the head's own gradient"
    assert held["activations"] + held["other"] == pytest.approx(float(predicted), rel=0.01)


def test_the_peak_is_a_moment_and_its_kinds_add_up():
    _, usage = trained(SIZES[0], 2)
    assert sum(usage.at_peak.values()) == usage.peak_bytes == max(usage.totals)
    assert all(usage.at_peak[kind] <= usage.peak_of(kind) for kind in KINDS)


def test_a_meter_within_a_meter_hides_nothing_from_it():
    w, outer, inner = torch.ones(64, requires_grad=True), Meter(), Meter()
    with outer:
        with inner:
            first = w.exp()
        second = w.exp()
        kept = (first, second)
        assert [m.usage.at_end["activations"] for m in (outer, inner)] == [512, 256]
    del kept


def test_an_announcement_reaches_every_meter_around_it():
    outer, inner = Meter(), Meter()
    with outer, inner:
        bucket = mib()
        tag_tensors(bucket, "buffers")
        assert [m.usage.at_end["buffers"] for m in (outer, inner)] == [MIB, MIB]


def test_a_meter_that_runs_is_not_started_again_and_leaves_no_hook_behind():
    w, meter = torch.ones(64, requires_grad=True), Meter()
    with meter, pytest.raises(RuntimeError, match="running already"):
        meter.__enter__()
    y = w.exp()
    with meter:
        pass
    assert y.requires_grad
    assert meter.usage.at_end["activations"] == 0


def test_meters_are_left_in_the_order_opposite_to_that_of_entering():
    outer, inner = Meter(), Meter()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="left before one that was entered after it"):
        outer.__exit__(None, None, None)
    inner.__exit__(None, None, None)
    x = torch.ones(1000)
    outer.__exit__(None, None, None)
    assert outer.usage.at_end["other"] == x.nbytes
    with pytest.raises(RuntimeError, match="was never entered"):
        outer.__exit__(None, None, None)


def test_a_sparse_gradient_counts_with_its_parts():
    table = nn.Embedding(100, 16, sparse=True)
    with Meter(table) as meter:
        table(torch.tensor([1, 2])).sum().backward()
    assert meter.usage.at_end["gradients"] == 2 * 16 * 4 + 2 * 8


@pytest.mark.parametrize("kind", ["csr", "csc"])
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_compressed_tensor_counts_with_its_indices(kind):
    pointers, indices, values = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 2]), torch.ones(2)
    make = {"csr": torch.sparse_csr_tensor, "csc": torch.sparse_csc_tensor}[kind]
    with Meter() as meter:
        meter.mark(make(pointers, indices, values, (3, 3)), "buffers")
    assert meter.usage.peak_of("buffers") == 4 * 8 + 2 * 8 + 2 * 4


def test_optimizer_states_in_lists_are_found():
    layer = nn.Linear(16, 16, bias=False)
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = layer(torch.ones(2, 16)).pow(2).sum()
        loss.backward()
        return loss

    with Meter(layer, optimizer) as meter:
        optimizer.step(closure)
    (state,) = optimizer.state.values()
    assert state["old_dirs"]
    tensors = [each for each in tree_leaves(state) if isinstance(each, torch.Tensor)]
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    assert meter.usage.at_end["optimizer states"] == sum(map(len, storages.values()))


WITH_LARGE_LAYERS = GPTConfig(vocab=64, context=16, num_layers=4, hidden=64, num_heads=4)
WITH_A_LARGE_TABLE = GPTConfig(vocab=2048, context=16, num_layers=3, hidden=32, num_heads=4)


@pytest.mark.parametrize("sizes", [WITH_LARGE_LAYERS, WITH_A_LARGE_TABLE])
def test_what_zero3_has_whole_is_at_most_what_the_calculator_says_and_not_much_less(sizes):
    def program(world):
        model = FullyShardedModule(GPT(sizes), world)
        tokens = torch.randint(sizes.vocab, (2, sizes.context))
        for _ in range(2):  # in the first pass nothing is gathered ahead: the order is not known
            with Meter(model) as meter:
                F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        return meter.usage.peak_of("buffers")

    config = calc.ModelConfig(
        layers=sizes.num_layers,
        hidden=sizes.hidden,
        heads=sizes.num_heads,
        ffn=sizes.ffn,
        vocab=sizes.vocab,
        context=sizes.context,
        biases=False,
    )
    setup = calc.TrainingSetup(model=config, recipe="fp32", zero=3, dp=2)
    predicted = float(calc.footprint(setup)["whole units"])
    for measured in run(program, 2, timeout=600).values:
        assert 0.7 * predicted <= measured <= predicted


def test_of_a_sharded_parameter_a_ranks_own_part_counts():
    def program(world):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

        def shard(name, module, mesh):
            module.weight = nn.Parameter(distribute_tensor(module.weight, mesh, [Shard(0)]))

        layer = nn.Linear(16, 16, bias=False)
        distribute_module(layer, init_device_mesh("cpu", (world.size,)), shard)
        with Meter(layer) as meter:
            pass
        return meter.usage.at_end["parameters"]

    assert run(program, 2, timeout=600).values == [16 * 16 * 4 // 2] * 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Meter(3), "module=3: give an nn.Module"),
        (lambda: Meter(None, nn.Linear(2, 2)), "give an optimizer that is made"),
    ],
)
def test_what_cannot_be_followed_is_refused(call, said):
    with pytest.raises(TypeError, match=said):
        call()
