"""A checkpoint of any layout loads into any other, bit for bit, and training goes on as before."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit import run
from labkit.checkpoint import Checkpointer, loading
from labkit.checkpoint.loading import find, wanted_shards
from labkit.checkpoint.whole_tensors import read_tensors
from labkit.combined import CombinedTraining
from labkit.data import Corpus
from labkit.data_parallel import DDP
from labkit.data_parallel.train_dp import train_step as data_parallel_step
from labkit.mesh import Mesh
from labkit.model import GPT, GPTConfig
from labkit.moe import ExpertParallelGPT, MoEConfig
from labkit.moe.train_moe import train_step as moe_step
from labkit.optimizer import AdamW
from labkit.pipeline import Pipeline, PipelineGPT, one_f_one_b, plan, token_loss
from labkit.pipeline import train_step as pipeline_step
from labkit.precision import MasterWeights
from labkit.tensor_parallel import parallelize
from labkit.tensor_parallel.train_tp import train_step as tensor_parallel_step
from labkit.train import TrainConfig, loss
from labkit.zero import FullyShardedModule, ShardedGradients, ShardedOptimizer

# 31 tokens and 22 features of the MLP divide by no number of ranks, 2 key-value heads not by 4.
SIZES = {"num_layers": 4, "hidden": 16, "num_heads": 4, "num_kv_heads": 2, "ffn": 22}
CONFIG = GPTConfig(vocab=31, context=6, **SIZES)
SETTINGS = TrainConfig(num_sequences=8, learning_rate=1e-2, dtype=torch.float64)
MOE = MoEConfig(num_experts=5, top_k=2, router="bias_balanced")
CORPUS = Corpus("bytes below 31", torch.arange(900, dtype=torch.uint8).remainder(31))


@dataclass
class Job:
    """A model and its optimizer in one layout, and how they take a step on a batch."""

    model: nn.Module
    optimizer: Any
    step: Callable[[Any], Any]
    extra: dict[str, Any] = field(default_factory=dict)


def data_parallel(group, seed):
    module = gpt(seed)
    model, optimizer = DDP(module, group), AdamW(module.parameters(), 1e-2)
    return Job(model, optimizer, partial(data_parallel_step, model, optimizer))


def sharded_states(optimizer_class, group, seed):
    module = gpt(seed)
    optimizer = optimizer_class(module.parameters(), AdamW, group, learning_rate=1e-2)
    return Job(module, optimizer, partial(backward_and_step, module, optimizer, group))


def zero3(group, seed):
    model = FullyShardedModule(gpt(seed), group)
    optimizer = AdamW(model.parameters(), 1e-2)
    return Job(model, optimizer, partial(backward_and_step, model, optimizer, group))


def backward_and_step(model, optimizer, group, batch):
    share = batch.share(group.rank, group.size)
    optimizer.zero_grad()
    (loss(model, share) * (len(share) * group.size / len(batch))).backward()
    optimizer.step()


def tensor_parallel(group, seed):
    model = parallelize(gpt(seed), group)
    optimizer = AdamW(model.parameters(), 1e-2)
    return Job(model, optimizer, partial(tensor_parallel_step, model, optimizer))


def pipelined(group, seed):
    schedule = plan(one_f_one_b, group.size, 4)
    model = PipelineGPT(CONFIG, schedule, group.rank, seed, torch.float64)
    pipeline = Pipeline(schedule, model.stages, token_loss, group, tied=model.tied)
    optimizer = AdamW(model.parameters(), 1e-2)
    return Job(model, optimizer, partial(pipeline_step, pipeline, optimizer))


def combined(group, seed, **sizes):
    mesh = Mesh(group, **sizes)
    settings = TrainConfig(num_sequences=8, learning_rate=1e-2, dtype=torch.float64, seed=seed)
    training = CombinedTraining(mesh, CONFIG, settings, num_microbatches=2)
    return Job(training.model, training.optimizer, training.step)


def experts(group, seed):
    mesh = Mesh(group, dp=1, ep=group.size)
    model = ExpertParallelGPT(CONFIG, MOE, mesh.ep, seed, torch.float64)
    optimizer = AdamW(model.parameters(), 1e-2)
    return Job(model, optimizer, partial(moe_step, model, optimizer, mesh=mesh))


class Odd(nn.Module):
    """What a GPT does not have: one number, a frozen parameter, buffers, a tied weight."""

    def __init__(self, seed, dtype=torch.float32):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.scale = nn.Parameter(torch.tensor(1.0 + seed))
        self.first, self.last = nn.Linear(6, 7), nn.Linear(7, 6, bias=False)
        self.frozen = nn.Parameter(torch.rand(5, generator=generator), requires_grad=False)
        self.norm = nn.BatchNorm1d(7)
        self.tied = self.last
        for parameter in (self.first.weight, self.last.weight):
            parameter.data = torch.rand(parameter.shape, generator=generator) - 0.5
        self.to(dtype)

    def forward(self, x):
        y = self.norm(self.first(x)) * self.scale
        return self.tied(y + self.last(y).sum() * 0)


def in_two_groups(named):
    """Of torch's own optimizer, with rates of their own, and no decay of vectors."""
    trained = [p for p in named if p[1].requires_grad]
    matrices = [p for n, p in trained if "weight" in n and "norm" not in n]
    others = [p for n, p in trained if not ("weight" in n and "norm" not in n)]
    return [{"params": matrices, "lr": 0.02}, {"params": others, "weight_decay": 0.0}]


def odd_job(model, optimizer, group, masters=None):
    """A step on a rank's rows of 8, and a schedule that a checkpoint keeps."""
    inner = optimizer.optimizer if isinstance(optimizer, MasterWeights) else optimizer
    schedule = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5)

    def step(batch):
        rows = batch.inputs_BT.tensor_split(group.size)[group.rank]
        optimizer.zero_grad()
        (model(rows.to(next(model.parameters()).dtype)).float() ** 2).mean().backward()
        if isinstance(model, DDP):
            model.reduce_gradients()
        optimizer.step()
        schedule.step()

    return Job(model, optimizer, step, {"schedule": schedule})


def odd_data_parallel(group, seed):
    module = Odd(seed)
    model = DDP(module, group)
    optimizer = torch.optim.AdamW(in_two_groups(module.named_parameters()), lr=0.01)
    return odd_job(model, optimizer, group)


def odd_zero1(group, seed):
    module = Odd(seed)
    groups = in_two_groups(module.named_parameters())
    optimizer = ShardedOptimizer(groups, torch.optim.AdamW, group, lr=0.01)
    return odd_job(module, optimizer, group)


def odd_zero3(group, seed, replicas=None):
    model = FullyShardedModule(Odd(seed), group, replicas=replicas)
    optimizer = torch.optim.AdamW(in_two_groups(model.named_parameters()), lr=0.01)
    return odd_job(model, optimizer, group)


def odd_hybrid(group, seed):
    mesh = Mesh(group, dp=2, tp=2)
    return odd_zero3(mesh.tp, seed, mesh.dp)


def odd_bfloat16_zero2(group, seed):
    module = Odd(seed, torch.bfloat16)
    groups = in_two_groups(module.named_parameters())
    optimizer = ShardedGradients(
        groups, torch.optim.AdamW, group, lr=0.01, master_dtype=torch.float32
    )
    return odd_job(module, optimizer, group)


def odd_bfloat16_alone(group, seed):
    module = Odd(seed, torch.bfloat16)
    optimizer = MasterWeights(module.parameters(), lambda m: torch.optim.AdamW(m, lr=0.01))
    return odd_job(module, optimizer, group)


def gpt(seed):
    return GPT(CONFIG, seed, torch.float64)


DENSE = {
    "data parallel": (data_parallel, (1, 2, 3)),
    "zero1": (partial(sharded_states, ShardedOptimizer), (2,)),
    "zero2": (partial(sharded_states, ShardedGradients), (4,)),
    "zero3": (zero3, (3, 4)),
    "tensor parallel": (tensor_parallel, (2, 4)),
    "pipeline": (pipelined, (3,)),
    "dp 2 x tp 2": (partial(combined, dp=2, pp=1, tp=2), (4,)),
    "dp 2 x pp 2": (partial(combined, dp=2, pp=2, tp=1), (4,)),
    "pp 2 x tp 2": (partial(combined, dp=1, pp=2, tp=2), (4,)),
}
LAYOUTS = {f"{name}, {n}": (make, n) for name, (make, sizes) in DENSE.items() for n in sizes}
EXPERTS = {f"experts, {n}": (experts, n) for n in (1, 2, 4)}


ODD = {
    "odd, data parallel": (odd_data_parallel, 2),
    "odd, zero1": (odd_zero1, 3),
    "odd, zero3": (odd_zero3, 3),
    "odd, hybrid": (odd_hybrid, 4),
}
BFLOAT16 = {"bf16, zero2": (odd_bfloat16_zero2, 3), "bf16, alone": (odd_bfloat16_alone, 1)}
ALL = {**LAYOUTS, **EXPERTS, **ODD, **BFLOAT16}


def dropout(model):
    """After the embedding, or the first layer, which some rank has. How many it found."""
    found = 0
    inner = getattr(model, "module", model)
    for module in inner.modules():
        if hasattr(module, "position") or module is getattr(inner, "first", None):
            module.register_forward_hook(lambda _, inputs, x: F.dropout(x, 0.3))
            found += 1
    return found


def batch(step):
    return SETTINGS.batches(CORPUS, CONFIG.context).at(step)


def sub_world(world, size):
    """A group of the first ranks; None on the others."""
    group = world.split(0 if world.rank < size else None)
    return group if world.rank < size else None


def goes_on(world, folder):
    """By layout: whether a job that was saved and loaded ends like one that never stopped."""
    found = {}
    for name, (make, size) in ALL.items():
        group = sub_world(world, size)
        if group is None:
            continue
        torch.manual_seed(7)
        whole = make(group, 0)
        num_dropouts = dropout(whole.model)
        for step in range(2):
            whole.step(batch(step))
        Checkpointer(folder / name, whole.model, whole.optimizer, group, extra=whole.extra).save(2)
        whole.step(batch(2))
        torch.manual_seed(8)
        resumed = make(group, 1)
        dropout(resumed.model)
        checkpointer = Checkpointer(
            folder / name, resumed.model, resumed.optimizer, group, extra=resumed.extra
        )
        loaded = checkpointer.load()
        resumed.step(batch(loaded.step))
        ends = [
            {n: p.detach().clone() for n, p in job.model.named_parameters()}
            for job in (whole, resumed)
        ]
        found[name] = (all(torch.equal(ends[0][n], ends[1][n]) for n in ends[0]), num_dropouts)
    return found


def travels(world, folder, pairs):
    """Load each checkpoint into another layout, and save it from there. Bytes read and needed."""
    found = {}
    for saved, other in pairs:
        make, size = ALL[other]
        group = sub_world(world, size)
        if group is None:
            continue
        job = make(group, 2)
        source = Checkpointer(folder / saved, job.model, job.optimizer, group, extra=job.extra)
        shards, _ = wanted_shards(find(source.folder, group).manifest, source.contents)
        loaded, num_read = load_and_count(source)
        needed = sum(shard.tensor.nbytes for shard in shards)
        found[saved, other] = (num_read, loaded.bytes_read, needed)
        target = folder / f"{saved} to {other}"
        Checkpointer(target, job.model, job.optimizer, group, extra=job.extra).save(loaded.step)
    return found


def load_and_count(checkpointer):
    """How many bytes were really read, apart from those for checksums."""
    num_read = []
    read_into = loading.read_into

    def counted(file, offset, into):
        num_read.append(len(into))
        read_into(file, offset, into)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "read_into", counted)
        return checkpointer.load(), sum(num_read)


@cache
def pairs():
    """Every layout saves and loads; which with which is drawn."""
    draw = random.Random(0)
    found = []
    for layouts in (list(LAYOUTS), list(EXPERTS), list(ODD), list(BFLOAT16)):
        others = draw.sample(layouts, len(layouts))
        found += [(a, b) for a, b in zip(layouts, others, strict=True) if a != b]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def resumed(folder):
    return run(goes_on, 4, (folder,), timeout=120).values


@pytest.fixture(scope="module")
def resharded(folder, resumed):
    return run(travels, 4, (folder, pairs()), timeout=120).values


@pytest.mark.parametrize("name", ALL)
def test_a_job_that_goes_on_equals_one_that_never_stopped_dropout_included(resumed, name):
    of_ranks = [of_rank[name] for of_rank in resumed if name in of_rank]
    assert all(is_equal for is_equal, _ in of_ranks)
    assert any(num_dropouts for _, num_dropouts in of_ranks)


@pytest.mark.parametrize("pair", pairs(), ids=" to ".join)
def test_another_layout_takes_over_every_bit(folder, resharded, pair):
    saved, other = pair
    before = read_tensors(folder / saved)
    after = read_tensors(folder / f"{saved} to {other}")
    of_ranks = {name for name in {**before, **after} if name.startswith("rng.")}
    assert before.keys() - of_ranks == after.keys() - of_ranks
    for name in before.keys() - of_ranks:
        assert torch.equal(before[name], after[name]), name


def test_a_rank_reads_the_bytes_that_it_needs_and_no_others(resharded):
    for of_rank in resharded:
        for (saved, other), (num_read, num_told, num_needed) in of_rank.items():
            assert num_read == num_told == num_needed, (saved, other)
