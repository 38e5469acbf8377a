"""Adapters equal the step of one process, whose weights are W + s B A, and peft's."""

from functools import cache

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional as F

from labkit import Group, run
from labkit.data import Batch
from labkit.data_parallel import DDP, NaiveDDP
from labkit.lora import (
    AdapterJobs,
    adapter_parameters,
    add_adapter,
    lora_layers,
    merge,
    shard_linears,
    unmerge,
    use_adapters,
)
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.serving.quantized import quantize
from labkit.tensor_parallel import gather_full_state
from labkit.train import loss
from labkit.zero import FullyShardedModule

# 12 heads: 1, 2, 3 and 4 ranks share them. 22 features, 7 sequences and rank 3 divide by few.
CONFIG = GPTConfig(vocab=31, context=6, num_layers=2, hidden=24, num_heads=12, ffn=22)
TARGETS = ("query", "value", "out", "up", "down")
RANK, ALPHA, NUM_STEPS = 3, 6.0, 3


def batch(step, num_sequences=7):
    generator = torch.Generator().manual_seed(step)
    windows = torch.randint(31, (num_sequences, 7), generator=generator)
    return Batch(windows[:, :-1], windows[:, 1:])


def gpt():
    return GPT(CONFIG, 0, torch.float64)


def adapted(model, *names, targets=TARGETS):
    """The model with adapters whose B is not 0, as after some training."""
    for seed, name in enumerate(names or ("job",)):
        add_adapter(model, name, RANK, alpha=ALPHA, targets=targets, seed=seed)
        fill(model, name, seed)
    return model


@torch.no_grad()
def fill(model, name, seed):
    """Give B the same numbers in every layout: cut from the whole."""
    for layer in lora_layers(model).values():
        if name not in layer.adapters:
            continue
        adapter, (num_out, _) = layer.adapters[name], layer.weight_shape
        generator = torch.Generator().manual_seed(seed + num_out)
        whole = 0.1 * torch.randn(num_out, RANK, generator=generator, dtype=torch.float64)
        sharding = getattr(adapter, "shardings", {}).get("b")
        adapter.b.copy_(whole if sharding is None else sharding.share(whole, adapter.group.rank))


def trained_parameters(model):
    return [p for p in model.parameters() if p.requires_grad]


@cache
def serial():
    """Losses, and the adapter after three steps of one process on whole batches."""
    model = adapted(gpt())
    optimizer, losses = AdamW(trained_parameters(model), 1e-2), []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        value = loss(model, batch(step))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses, {name: p.detach() for name, p in adapter_parameters(model, "job").items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-11, msg=name)


def test_gradients_are_those_through_the_whole_weight():
    """The chain rule through W + s B A, written without the room's layers."""
    model, plain = adapted(gpt()), gpt()
    halves = {
        name: p.detach().clone().requires_grad_()
        for name, p in adapter_parameters(model, "job").items()
    }
    weights = {name: p.detach() for name, p in plain.named_parameters()}
    for path in lora_layers(model):
        a, b = (halves[f"{path}.adapters.job.{half}"] for half in "ab")
        weights[f"{path}.weight"] = weights[f"{path}.weight"] + ALPHA / RANK * b @ a
    logits = functional_call(plain, weights, (batch(0).inputs_BT,))
    F.cross_entropy(logits.flatten(0, 1), batch(0).targets_BT.flatten()).backward()
    loss(model, batch(0)).backward()
    assert_equal(
        {name: p.grad for name, p in adapter_parameters(model, "job").items()},
        {name: half.grad for name, half in halves.items()},
    )
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained == halves.keys()


def data_parallel(world: Group, wrap):
    model = wrap(adapted(gpt()), world)
    optimizer = AdamW(trained_parameters(model), 1e-2)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        share = batch(step).share(world.rank, world.size)
        part = share.num_targets / batch(step).num_targets
        (loss(model, share) * part * world.size).backward()
        getattr(model, "reduce_gradients", lambda: None)()
        optimizer.step()
    if isinstance(model, FullyShardedModule):
        parameters = model.full_parameters()
    else:
        parameters = {name: p.detach() for name, p in model.module.named_parameters()}
    return {name: p for name, p in parameters.items() if ".adapters." in name}


def tensor_parallel(world: Group):
    model = adapted(shard_linears(gpt(), world))
    optimizer, losses = AdamW(trained_parameters(model), 1e-2), []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        value = loss(model, batch(step))
        value.backward()
        optimizer.step()
        losses.append(value.item())
    whole = gather_full_state(model, world)
    return losses, {name: p for name, p in whole.items() if ".adapters." in name}


def all_strategies(world: Group):
    return {
        "naive": data_parallel(world, NaiveDDP),
        "ddp": data_parallel(world, DDP),
        "zero3": data_parallel(world, FullyShardedModule),
        "tensor parallel": tensor_parallel(world),
    }


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_three_steps_equal_those_of_one_process(world_size):
    losses, expected = serial()
    for found in run(all_strategies, world_size).values:
        of_losses, found["tensor parallel"] = found["tensor parallel"]
        assert of_losses == pytest.approx(losses, rel=1e-10)
        for parameters in found.values():
            assert_equal(parameters, expected)


def mixed(world: Group):
    """A sharded model whose rows use two adapters, or none: logits, and gradients gathered."""
    model = adapted(shard_linears(gpt(), world), "p", "c")
    use_adapters(model, ROWS)
    logits = model(batch(0).inputs_BT)
    logits.square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.data = parameter.grad
    whole = gather_full_state(model, world)
    return logits.detach(), {name: whole[name] for name in gradients}


ROWS = ["p", "c", None, "p", "c", "c", None]


@pytest.mark.parametrize("world_size", [1, 3])
def test_each_row_has_the_change_of_its_own_adapter(world_size):
    model = adapted(gpt(), "p", "c")
    x = batch(0).inputs_BT
    alone = []
    for row, name in enumerate(ROWS):
        use_adapters(model, name)
        alone.append(model(x[row : row + 1]))
    torch.cat(alone).square().mean().backward()
    expected = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    torch.testing.assert_close(alone[2], gpt()(x[2:3]))
    for logits, gradients in run(mixed, world_size).values:
        torch.testing.assert_close(logits, torch.cat(alone), rtol=1e-10, atol=1e-11)
        assert_equal(gradients, expected)


def alone(name, steps):
    model = adapted(gpt(), "p", "c", "idle")
    use_adapters(model, name)
    optimizer = AdamW(adapter_parameters(model, name).values(), 1e-2)
    for step in steps:
        optimizer.zero_grad()
        loss(model, batch(step, SEQUENCES[name])).backward()
        optimizer.step()
    return {path: p.detach() for path, p in adapter_parameters(model, name).items()}


SEQUENCES = {"p": 5, "c": 2}
STEPS = {"p": (0, 1, 2), "c": (0, 2)}  # c has no rows in step 1


def together(world: Group):
    model = adapted(gpt(), "p", "c", "idle")
    before = {name: p.clone() for name, p in adapter_parameters(model, "idle").items()}
    jobs = AdapterJobs(NaiveDDP(model, world), lambda parameters: AdamW(parameters, 1e-2))
    losses = []
    for step in range(3):
        batches = {n: batch(step, SEQUENCES[n]) for n in SEQUENCES if step in STEPS[n]}
        losses.append(jobs.step(batches))
    idle = adapter_parameters(model, "idle")
    assert all(torch.equal(before[name], p) for name, p in idle.items())
    return losses, {
        n: {k: p.detach() for k, p in adapter_parameters(model, n).items()} for n in STEPS
    }


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_jobs_in_one_batch_train_as_if_each_were_alone(world_size):
    for losses, found in run(together, world_size).values:
        for name, steps in STEPS.items():
            assert_equal(found[name], alone(name, steps))
        model = adapted(gpt(), "p")
        assert losses[0]["p"] == pytest.approx(loss(model, batch(0, 5)).item(), rel=1e-10)


def merged_and_not(world: Group):
    model = adapted(shard_linears(gpt(), world))
    x = batch(0).inputs_BT
    with torch.no_grad():
        beside = model(x)
        merge(model, "job")
        inside = model(x)
        unmerge(model)
        return beside, inside, model(x)


@pytest.mark.parametrize("world_size", [1, 3])
def test_merged_weights_compute_the_same(world_size):
    for beside, inside, after in run(merged_and_not, world_size).values:
        assert not torch.allclose(beside, gpt()(batch(0).inputs_BT))
        torch.testing.assert_close(inside, beside, rtol=1e-10, atol=1e-11)
        torch.testing.assert_close(after, beside, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantised_base_has_the_gradients_of_its_rounded_weights(bits):
    quantized = quantize(gpt(), bits, group=2)
    full = gpt()
    for path, module in quantized.named_modules():
        if hasattr(module, "codes"):
            full.get_submodule(path).weight.data = module.weight(torch.float64)
    targets = ("query", "value")
    gradients = []
    for model in (quantized, full):
        add_adapter(model, "job", RANK, targets=targets)
        for parameter in adapter_parameters(model, "job").values():
            parameter.data = torch.full_like(parameter, 0.1, dtype=torch.float64)
        loss(model, batch(0)).backward()
        gradients.append({n: p.grad for n, p in adapter_parameters(model, "job").items()})
    assert_equal(*gradients)


def peft_model(ours, *names):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=list(TARGETS))
    theirs = peft.get_peft_model(gpt(), config, adapter_name=names[0])
    for name in names[1:]:
        theirs.add_adapter(name, config)
    for path, parameter in theirs.named_parameters():
        for half in "ab":
            for name in names:
                if path.endswith(f".lora_{half.upper()}.{name}.weight"):
                    layer = path.removeprefix("base_model.model.").partition(".lora_")[0]
                    value = ours[f"{layer}.adapters.{name}.{half}"]
                    assert parameter.shape == value.shape
                    parameter.data = value.detach().clone()
    return theirs


def test_three_steps_equal_those_of_peft():
    losses, expected = serial()
    start = adapted(gpt())
    theirs = peft_model(adapter_parameters(start, "job"), "job")
    optimizer = AdamW([p for p in theirs.parameters() if p.requires_grad], 1e-2)
    for step, value in enumerate(losses):
        optimizer.zero_grad()
        found = loss(theirs, batch(step))
        found.backward()
        optimizer.step()
        assert found.item() == pytest.approx(value, rel=1e-10)
    halves = dict(theirs.named_parameters())
    for name, value in expected.items():
        layer, _, half = name.rpartition(".")
        layer = layer.removesuffix(".adapters.job")
        found = halves[f"base_model.model.{layer}.lora_{half.upper()}.job.weight"]
        torch.testing.assert_close(found.detach(), value, rtol=1e-10, atol=1e-11)


def test_rows_of_two_adapters_equal_those_of_peft():
    model = adapted(gpt(), "p", "c")
    parameters = {k: p for n in "pc" for k, p in adapter_parameters(model, n).items()}
    theirs = peft_model(parameters, "p", "c").eval()
    use_adapters(model, ROWS)
    names = [name or "__base__" for name in ROWS]
    with torch.no_grad():
        found = theirs(batch(0).inputs_BT, adapter_names=names)
        torch.testing.assert_close(model(batch(0).inputs_BT), found, rtol=1e-10, atol=1e-11)
