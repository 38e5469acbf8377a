"""The one-file editions equal the package and one process, on 1 to 4 ranks that divide no size.

The files are plain programs without labkit. A rank loads one, and gives it a torch.distributed that
counts what is sent and keeps labkit's own group open.
"""

import functools
import importlib.util
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

from labkit import data_parallel, moe, pipeline, run, tensor_parallel, zero
from labkit import rl as labkit_rl
from labkit.data import Batch
from labkit.model import GPT, GPTConfig

FOLDER = Path(__file__).parents[2] / "examples" / "one_file"
NAMES = ["ddp", "expert_parallel", "grpo", "one_f_one_b", "tensor_parallel", "zero3"]
CLOSE = {"rtol": 1e-11, "atol": 1e-11}
TOKENS = [7, 0, 12, 5]  # number of tokens by rank, for experts


class CountedDist:
    """torch.distributed on the group that is open, and the numbers in each operation's tensor."""

    def __init__(self):
        self.numbers = Counter()
        self.calls = Counter()

    def __getattr__(self, name):
        if name in ("init_process_group", "destroy_process_group"):
            return lambda *args: None
        found = getattr(dist, name)
        if not callable(found) or name.startswith("get_"):
            return found

        def counted(tensor, *args, **kwargs):
            numel = tensor.numel() if isinstance(tensor, torch.Tensor) else sum(map(len, tensor))
            self.numbers[name] += numel
            self.calls[name] += 1
            return found(tensor, *args, **kwargs)

        return counted


def one_file(name):
    """Return the file as a module of its own, whose `dist` counts."""
    spec = importlib.util.spec_from_file_location(f"one_file_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.dist = CountedDist()
    return module


def gradients(model):
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def batch_loss(file, model, step, rank, size):
    """This rank's part of a batch's loss, so weighted that the mean over ranks is the batch's."""
    x, targets = (each.tensor_split(size)[rank] for each in file.batch_of(step))
    loss = F.mse_loss(model(x), targets, reduction="sum")
    return loss * size / file.batch_of(step)[1].numel()


def of_ddp(world):
    file = one_file("ddp")
    found = {}
    ours = file.DDP(file.make_model(), bucket_bytes=600)
    package = data_parallel.DDP(file.make_model(), world)
    for model in (ours, package):
        batch_loss(file, model, 0, world.rank, world.size).backward()
    ours.finish()
    found["ours"], found["package"] = gradients(ours.module), gradients(package.module)
    calls, numbers = file.dist.calls["all_reduce"], file.dist.numbers["all_reduce"]
    found["sent"] = calls, len(ours.buckets), numbers

    ours.zero_grad()
    for step, ours.syncs in ((0, False), (1, False), (2, True)):
        batch_loss(file, ours, step, world.rank, world.size).backward()
    ours.finish()
    found["accumulated"] = gradients(ours.module)

    # Rank 0's loss leaves the first layer out: its gradients there count as zeros.
    ours.zero_grad()
    x = torch.ones(1, 5 if world.rank else 11, dtype=torch.float64)
    (ours(x) if world.rank else ours.module[1:](x)).sum().backward()
    ours.finish()
    found["left out"] = gradients(ours.module)
    return found


def of_zero3(world):
    file = one_file("zero3")
    layers = nn.Sequential(*map(file.ShardedLayer, file.make_layers()))
    package = zero.FullyShardedModule(nn.Sequential(*file.make_layers()), world)
    gathered = []
    gather = file.ShardedLayer.gather

    def noted(self):
        full = gather(self)
        gathered.append(StorageWeakRef(full.untyped_storage()))
        return full

    file.ShardedLayer.gather = noted
    file.dist.calls.clear()
    loss = batch_loss(file, layers, 0, world.rank, world.size)
    alive = num_alive(gathered)
    loss.backward()
    alive += num_alive(gathered)
    file.ShardedLayer.gather = gather
    sent = dict(file.dist.calls)
    for model in (layers, package):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(2):
            optimizer.zero_grad()
            batch_loss(file, model, step, world.rank, world.size).backward()
            optimizer.step()
    whole = [p.flatten() for p in package.full_parameters().values()]
    held = sum(p.numel() for p in layers.parameters())
    ours = torch.cat([layer.gather() for layer in layers])
    return {"alive": alive, "held": held, "ours": ours, "package": torch.cat(whole), "sent": sent}


def num_alive(storages):
    """How many are in use. gloo's thread may hold one for a moment after an operation."""
    until_s = time.monotonic() + 20
    while not all(each.expired() for each in storages) and time.monotonic() < until_s:
        time.sleep(0.01)
    return sum(not each.expired() for each in storages)


TP_CONFIG = GPTConfig(vocab=19, context=8, num_layers=2, hidden=24, num_heads=12, ffn=26)


def of_labkit(name):
    """The name of a parameter in labkit's GPT."""
    name = re.sub(r"^(token|position)", r"embedding.\1", name)
    name = re.sub(r"\.(query|key|value|out)\.", r".attention.\1.", name)
    return re.sub(r"\.(up|down)\.", r".mlp.\1.", name)


def token_loss(model):
    tokens = torch.randint(19, (3, 9), generator=torch.Generator().manual_seed(0))
    if isinstance(model, tensor_parallel.TensorParallelGPT):  # its logits are cut, too
        return model.loss(Batch(tokens[:, :-1], tokens[:, 1:]))
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def of_tensor_parallel(world):
    file = one_file("tensor_parallel")
    torch.manual_seed(0)
    config = {"hidden": 24, "head_dim": 2, "ffn": 26}
    ours, serial = (file.GPT(**config).double() for _ in range(2))
    ours.load_state_dict(serial.state_dict())
    whole = GPT(TP_CONFIG, dtype=torch.float64)
    whole.load_state_dict({of_labkit(k): v for k, v in serial.state_dict().items()}, strict=False)
    package = tensor_parallel.parallelize(whole, world)
    file.parallelize(ours)
    sent = []
    for model in (ours, package, serial):
        loss = token_loss(model)
        sent.append(file.dist.numbers["all_reduce"])
        loss.backward()
        sent.append(file.dist.numbers["all_reduce"])
    full = tensor_parallel.gather_full_gradients(package)
    # 5 heads of 4 features: no number of ranks but 1 divides them.
    uneven, of_serial = file.GPT().double(), file.GPT().double()
    uneven.load_state_dict(of_serial.state_dict())
    file.parallelize(uneven)
    for model in (uneven, of_serial):
        token_loss(model).backward()
    return {
        "ours": gradients(ours),
        "package": {name: full[of_labkit(name)] for name, _ in ours.named_parameters()},
        "serial": gradients(serial),
        "uneven": (gradients(uneven), gradients(of_serial)),
        "sent": sent[:2],
    }


def of_one_f_one_b(world):
    file = one_file("one_f_one_b")
    x, targets = torch.randn(2, 10, 6, generator=torch.Generator().manual_seed(0)).double()
    found = {}
    for m in (1, 3, 7):
        stages = [file.stage_of(file.make_layers(), world.rank, world.size) for _ in range(2)]
        file.dist.calls.clear()
        loss, most = file.pipeline_step(stages[0], F.mse_loss, x, targets, m)
        schedule = pipeline.plan(pipeline.one_f_one_b, world.size, m)
        of_rank = [f"{op.kind.name}{op.microbatch}" for op in schedule.rows[world.rank]]
        package = pipeline.Pipeline(schedule, {world.rank: stages[1]}, F.mse_loss, world)
        package.step(x, targets)
        found[m] = {
            "loss": loss,
            "most": most,
            "planned": pipeline.in_flight(schedule)[world.rank],
            "order": [f"{kind}{i}" for kind, i in file.one_f_one_b(world.rank, world.size, m)],
            "planned order": of_rank,
            "sent": file.dist.calls["isend"],
            "ours": [p.grad for p in stages[0].parameters()],
            "package": [p.grad for p in stages[1].parameters()],
        }
    return found


def of_expert_parallel(world):
    file = one_file("expert_parallel")
    torch.manual_seed(0)
    whole = file.MoE().double()
    ours = file.MoE(rank=world.rank, size=world.size).double()
    config = moe.MoEConfig(num_experts=5, top_k=2, weights="of_all", expert_ffn=7)
    package = moe.ExpertParallelMoE(GPTConfig(hidden=6, num_heads=2), config, world).double()
    state = {f"router.{k}" if k.startswith("gate") else k: v for k, v in whole.state_dict().items()}
    package.load_state_dict({name: state[name] for name in package.state_dict()})
    ours.load_state_dict({name: whole.state_dict()[name] for name in ours.state_dict()})
    passes = []
    for model in (ours, package):
        x = expert_tokens(world.rank).requires_grad_()
        y = model(x[None])[0][0] if model is package else model(x)
        y.square().sum().backward()
        of_model = {k.removeprefix("router."): g for k, g in gradients(model).items()}
        passes.append((y.detach(), x.grad, of_model))
    return passes


def expert_tokens(rank):
    return torch.randn(TOKENS[rank], 6, generator=torch.Generator().manual_seed(rank)).double()


def of_grpo(world):
    file = one_file("grpo")
    torch.manual_seed(0)
    policy = file.Policy().double()
    answers = file.generate(policy, torch.arange(5).tensor_split(world.size)[world.rank], 6, 0)
    num_tokens = answers.mask.sum().double()
    dist.all_reduce(num_tokens)
    with torch.no_grad():  # as after an update: ratios differ from 1, and some are clipped
        for parameter in policy.parameters():
            parameter.mul_(1.2)
    loss = file.loss_of(policy, answers, num_tokens)
    loss.backward()
    return answers, loss.item(), gradients(policy)


PARTS = {
    "ddp": of_ddp,
    "zero3": of_zero3,
    "tensor_parallel": of_tensor_parallel,
    "one_f_one_b": of_one_f_one_b,
    "expert_parallel": of_expert_parallel,
    "grpo": of_grpo,
}


def all_parts(world):
    torch.set_num_threads(1)
    return {name: part(world) for name, part in PARTS.items()}


@functools.cache
def ranks(world_size):
    return run(all_parts, world_size).values


@pytest.fixture(params=[1, 2, 3, 4])
def size(request):
    return request.param


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_short_and_needs_torch_alone(name):
    text = (FOLDER / f"{name}.py").read_text()
    assert len(text.splitlines()) <= 150
    assert "labkit" not in text
    for line in ("Layout:", "Wire:", "Paper"):
        assert line in text
    assert sorted(path.stem for path in FOLDER.glob("*.py")) == NAMES


def run_main(world, names):
    torch.set_num_threads(1)
    for name in names:
        one_file(name).main()  # SystemExit if it is not the serial step


def test_each_program_compares_itself_with_the_serial_step(size):
    # GRPO's takes two seconds, and its training is compared below.
    names = NAMES if size == 3 else [name for name in NAMES if name != "grpo"]
    logs = run(run_main, size, args=(names,)).logs
    for rank, text in enumerate(logs):
        assert len(re.findall(rf"^rank {rank}: .*\de[+-]\d\d$", text, re.M)) == len(names)


def test_python_starts_two_ranks():
    done = subprocess.run(
        [sys.executable, FOLDER / "ddp.py"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"rank (\d): 10 steps, 2 buckets", done.stdout)) == ["0", "1"]


def test_ddp(size):
    file = one_file("ddp")
    serial, accumulated = file.make_model(), file.make_model()
    batch_loss(file, serial, 0, 0, 1).backward()
    for step in range(3):
        batch_loss(file, accumulated, step, 0, 1).backward()
    for rank in ranks(size):
        found = rank["ddp"]
        for name, expected in gradients(serial).items():
            torch.testing.assert_close(found["ours"][name], expected, **CLOSE)
            torch.testing.assert_close(found["package"][name], expected, **CLOSE)
        for name, expected in gradients(accumulated).items():
            torch.testing.assert_close(found["accumulated"][name], expected, **CLOSE)
        num_parameters = sum(p.numel() for p in serial.parameters())
        assert found["sent"] == (2, 2, num_parameters)


def test_ddp_counts_a_parameter_that_a_rank_leaves_out_as_zeros(size):
    file = one_file("ddp")
    serial = file.make_model()
    (serial(torch.ones(1, 5, dtype=torch.float64)).sum() * (size - 1)).backward()
    serial[1:](torch.ones(1, 11, dtype=torch.float64)).sum().backward()
    for rank in ranks(size):
        for name, expected in gradients(serial).items():
            torch.testing.assert_close(rank["ddp"]["left out"][name], expected / size, **CLOSE)


def test_zero3(size):
    file = one_file("zero3")
    serial = nn.Sequential(*file.make_layers())
    optimizer = torch.optim.AdamW(serial.parameters(), lr=0.01)
    for step in range(2):
        optimizer.zero_grad()
        batch_loss(file, serial, step, 0, 1).backward()
        optimizer.step()
    whole = torch.cat([p.detach().flatten() for p in serial.parameters()])
    for rank in ranks(size):
        torch.testing.assert_close(rank["zero3"]["ours"], whole, **CLOSE)
        torch.testing.assert_close(rank["zero3"]["package"], whole, **CLOSE)
        # Padding: at most n - 1 numbers for each of three layers, over all ranks.
        assert len(whole) / size <= rank["zero3"]["held"] < len(whole) / size + 3


def test_zero3_frees_the_weights_of_a_layer_after_its_forward_and_after_its_backward(size):
    for rank in ranks(size):
        found = rank["zero3"]
        assert found["alive"] == 0
        # The first layer's weights are not gathered again: its input needs no gradient.
        assert found["sent"] == {"all_gather": 3 + 2, "reduce_scatter": 3}


def test_tensor_parallel(size):
    x = 3 * 8 * 24  # numbers of x
    for number, rank in enumerate(ranks(size)):
        found = rank["tensor_parallel"]
        assert found["sent"] == [2 * 2 * x, 2 * 2 * 2 * x]  # two blocks, two all-reduces each way
        whole = {**found["serial"]}
        assert found["ours"].keys() == whole.keys() == found["package"].keys()
        for name, gradient in whole.items():
            torch.testing.assert_close(found["package"][name], gradient, **CLOSE)
        for ours, of_serial, head_dim in ((found["ours"], whole, 2), (*found["uneven"], 4)):
            for name, gradient in of_serial.items():
                expected = share(name, gradient, number, size, head_dim)
                torch.testing.assert_close(ours[name], expected, **CLOSE)


def share(name, whole, rank, size, head_dim):
    """A rank's part of a weight, by numbers of rows or columns."""
    layer = name.split(".")[-2]
    if layer in ("up", "down"):
        return whole.tensor_split(size, 0 if layer == "up" else 1)[rank]
    if layer not in ("query", "key", "value", "out"):
        return whole
    features = torch.arange(len(whole)).split(head_dim)
    mine = torch.arange(len(features)).tensor_split(size)[rank]
    index = torch.cat([features[head] for head in mine])
    return whole[:, index] if layer == "out" else whole[index]


def test_one_f_one_b(size):
    file = one_file("one_f_one_b")
    layers = file.make_layers()
    x, targets = torch.randn(2, 10, 6, generator=torch.Generator().manual_seed(0)).double()
    loss = F.mse_loss(nn.Sequential(*layers)(x), targets)
    loss.backward()
    for m in (1, 3, 7):
        for number, rank in enumerate(ranks(size)):
            found = rank["one_f_one_b"][m]
            expected = [p.grad for p in file.stage_of(layers, number, size).parameters()]
            torch.testing.assert_close(found["ours"], expected, **CLOSE)
            torch.testing.assert_close(found["package"], expected, **CLOSE)
            assert found["order"] == found["planned order"]
            assert found["most"] == found["planned"] == min(size - number, m)
            is_end = (number == 0) + (number == size - 1)
            assert found["sent"] == m * (2 - is_end)
        torch.testing.assert_close(found["loss"], loss.item(), **CLOSE)


def test_expert_parallel(size):
    file = one_file("expert_parallel")
    torch.manual_seed(0)
    serial = file.MoE().double()
    x = torch.cat([expert_tokens(rank) for rank in range(size)]).requires_grad_()
    y = serial(x)
    y.square().sum().backward()
    expected = gradients(serial)
    for which in (0, 1):  # the file, the package
        of_ranks = [rank["expert_parallel"][which] for rank in ranks(size)]
        torch.testing.assert_close(torch.cat([each[0] for each in of_ranks]), y, **CLOSE)
        torch.testing.assert_close(torch.cat([each[1] for each in of_ranks]), x.grad, **CLOSE)
        router = sum(each[2]["gate.weight"] for each in of_ranks)
        torch.testing.assert_close(router, expected["gate.weight"], **CLOSE)
        experts = [name for each in of_ranks for name in each[2] if name != "gate.weight"]
        assert sorted([*experts, "gate.weight"]) == sorted(expected)  # each on one rank
        for each in of_ranks:
            for name in each[2].keys() - {"gate.weight"}:
                torch.testing.assert_close(each[2][name], expected[name], **CLOSE)


def test_grpo(size):
    file = one_file("grpo")
    torch.manual_seed(0)
    policy = file.Policy().double()
    answers = file.generate(policy, torch.arange(5), 6, 0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.2)
    # The oracle takes advantages and loss from the package, and no line of theirs from the file.
    rewards = file.rewards_of(answers.prompts, answers.tokens).view(5, 6)
    advantages = labkit_rl.group_advantages(rewards).flatten()
    logits = policy(answers.prompts, answers.tokens[:, :-1]).log_softmax(2)
    log_probs = logits.gather(2, answers.tokens[..., None])[..., 0]
    expected = labkit_rl.grpo_loss(
        log_probs, answers.log_probs, answers.log_probs, advantages, answers.mask
    )
    expected.backward()
    found = [rank["grpo"] for rank in ranks(size)]
    assert torch.equal(torch.cat([each[0].tokens for each in found]), answers.tokens)
    assert not answers.mask.all() and advantages.abs().max() > 1
    ratios = (log_probs - answers.log_probs).exp()[answers.mask]
    assert ratios.max() > 1.2 and ratios.min() < 0.8  # the clip matters
    assert sum(each[1] for each in found) == pytest.approx(expected.item(), abs=1e-11)
    for name, gradient in gradients(policy).items():
        torch.testing.assert_close(sum(each[2][name] for each in found), gradient, **CLOSE)
