"""A checkpoint of any layout loads into any other, bit for bit, and training goes on as before."""

import random
from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from labkit import run
from labkit.checkpoint import Checkpointer, Disk, DoesNotFit, load_plain, loading
from labkit.checkpoint.loading import find, wanted_shards
from labkit.checkpoint.plain import load_shard, save_shards
from labkit.checkpoint.whole_tensors import read_tensors
from labkit.data_parallel import DDP
from labkit.mesh import Mesh
from labkit.optimizer import OwnedFragment
from labkit.precision import MasterWeights
from labkit.shards import Extent, NamedShard
from labkit.tensor_parallel import parallelize
from labkit.zero import FullyShardedModule, Zero1Optimizer, Zero2Optimizer
from tests.an_example import load_example

recovery = load_example("recovery")
Job, LAYOUTS, EXPERTS = recovery.Job, recovery.LAYOUTS, recovery.EXPERTS
sub_world = recovery.sub_world


class Odd(nn.Module):
    """A model with a scalar, a frozen parameter, buffers and a tied weight, unlike a GPT."""

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
    """Return parameter groups for torch's optimizer: separate rates, and no decay of vectors."""
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
    optimizer = Zero1Optimizer(groups, torch.optim.AdamW, group, lr=0.01)
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
    optimizer = Zero2Optimizer(
        groups, torch.optim.AdamW, group, lr=0.01, master_dtype=torch.float32
    )
    return odd_job(module, optimizer, group)


def odd_bfloat16_alone(group, seed):
    module = Odd(seed, torch.bfloat16)
    optimizer = MasterWeights(module.parameters(), lambda m: torch.optim.AdamW(m, lr=0.01))
    return odd_job(module, optimizer, group)


ODD = {
    "odd, data parallel": (odd_data_parallel, 2),
    "odd, zero1": (odd_zero1, 3),
    "odd, zero3": (odd_zero3, 3),
    "odd, hybrid": (odd_hybrid, 4),
}
BFLOAT16 = {"bf16, zero2": (odd_bfloat16_zero2, 3), "bf16, alone": (odd_bfloat16_alone, 1)}
ALL = {**LAYOUTS, **EXPERTS, **ODD, **BFLOAT16}
SIZES = (1, 2, 3, 4)


def whole_of(step):
    return torch.arange(11.0) / (step + 2)


def uneven(num_ranks):
    """Elements of each rank's shard of 11: the last one has none, unless it is alone."""
    return {1: [11], 2: [11, 0], 3: [5, 6, 0], 4: [2, 7, 2, 0]}[num_ranks]


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
    return found, travels_plainly(world, folder / "plain")


def travels_plainly(world, folder):
    """By the step, which 1 to 4 ranks save, and the number of ranks that load it: their shards."""
    groups, found = [sub_world(world, size) for size in SIZES], {}
    for step, saving in zip(SIZES, groups):
        if saving:
            shard = whole_of(step).split(uneven(step))[world.rank]
            save_shards(Disk(), folder, step, shard, saving)
        world.barrier()
        for size, loading_ in zip(SIZES, groups):
            if loading_:
                found[step, size] = load_shard(folder, loading_)
        world.barrier()
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
    return run(recovery.goes_on, 4, (folder, ALL), timeout=600).values


@pytest.fixture(scope="module")
def resharded(folder, resumed):
    return run(travels, 4, (folder, pairs()), timeout=600).values


@pytest.mark.parametrize("saved", SIZES)
@pytest.mark.parametrize("loaded", SIZES)
def test_the_plain_rung_too_loads_on_any_number_of_ranks(resharded, saved, loaded):
    found = [of_plain[saved, loaded] for _, of_plain in resharded[:loaded]]
    assert [step for step, _ in found] == [saved] * loaded
    assert torch.equal(torch.cat([shard for _, shard in found]), whole_of(saved))
    assert max(len(x) for _, x in found) - min(len(x) for _, x in found) <= 1


@pytest.mark.parametrize("name", ALL)
def test_a_resumed_job_equals_one_that_never_stopped_including_dropout(resumed, name):
    of_ranks = [of_rank[name] for of_rank in resumed if name in of_rank]
    assert all(is_equal for is_equal, _ in of_ranks)
    assert any(num_dropouts for _, num_dropouts in of_ranks)


@pytest.mark.parametrize("pair", pairs(), ids=" to ".join)
def test_another_layout_loads_every_bit(folder, resharded, pair):
    saved, other = pair
    before = read_tensors(folder / saved)
    after = read_tensors(folder / f"{saved} to {other}")
    of_ranks = {name for name in {**before, **after} if name.startswith("rng.")}
    assert before.keys() - of_ranks == after.keys() - of_ranks
    for name in before.keys() - of_ranks:
        assert torch.equal(before[name], after[name]), name


def test_a_rank_reads_the_bytes_that_it_needs_and_no_others(resharded):
    for of_rank, _ in resharded:
        for (saved, other), (num_read, num_reported, num_needed) in of_rank.items():
            assert num_read == num_reported == num_needed, (saved, other)


class Columns(nn.Module):
    """A strategy that labkit does not have: a rank holds every n-th column of a matrix, as rows."""

    def __init__(self, whole, group):
        super().__init__()
        self.rank, self.columns = group.rank, range(group.rank, whole.shape[1], group.size)
        self.rows = nn.ParameterList(whole[:, [c]].T.clone() for c in self.columns)
        self.shape = tuple(whole.shape)

    def named_shards(self):
        for column, row in zip(self.columns, self.rows, strict=True):
            yield NamedShard("w", Extent.of_dim(self.shape, 1, range(column, column + 1)), row.T)


class Halves:
    """An optimizer that updates a part of its parameter on each rank, and keeps its momentum."""

    def __init__(self, parameter, group):
        self.numels = [parameter.numel() * r // group.size for r in (group.rank, group.rank + 1)]
        self.parameter, self.momentum = parameter, None

    def fragments(self):
        start, stop = self.numels
        values = {} if self.momentum is None else {"momentum": self.momentum}
        part = self.parameter.detach().flatten()[start:stop]
        return [OwnedFragment(self.parameter, start, stop, part, values)]

    def load_fragments(self, states):
        self.momentum = states[0].get("momentum")


def saves_its_own(world, folder):
    """Save with a strategy and an optimizer of this file, and load on other ranks and layouts."""
    whole, momentum = torch.arange(35.0).view(5, 7), torch.arange(35.0) / 3
    Checkpointer(folder / "columns", Columns(whole, world), None, world).save(1)
    plain = nn.Module()
    plain.w = nn.Parameter(torch.zeros(5, 7))
    Checkpointer(folder / "columns", plain, None, world).load()
    alone = world.split(world.rank)
    columns = Columns(torch.zeros(5, 7), alone)
    Checkpointer(folder / "columns", columns, None, alone).load()
    one, other = Halves(plain.w, world), Halves(plain.w, alone)
    one.momentum = momentum[slice(*one.numels)].clone()
    Checkpointer(folder / "halves", plain, one, world).save(1)
    Checkpointer(folder / "halves", plain, other, alone).load()
    is_equal = [torch.equal(plain.w, whole), torch.equal(torch.cat([*columns.rows]).T, whole)]
    return [*is_equal, torch.equal(other.momentum, momentum)]


def test_a_strategy_that_checkpoints_do_not_know_is_saved_and_loaded(tmp_path):
    assert run(saves_its_own, 3, (tmp_path,)).values == [[True] * 3] * 3


def loads_plain(world, odd, gpt, out):
    """Load a file into three layouts, and save each."""
    whole, sharded = Odd(1), FullyShardedModule(Odd(1), world)
    tensor_parallel = parallelize(recovery.gpt(1), world)
    for name, model, path in (
        ("whole", whole, odd),
        ("zero3", sharded, odd),
        ("tensor parallel", tensor_parallel, gpt),
    ):
        load_plain(path, model, world)
        Checkpointer(out / name, model, None, world).save(0)
    with pytest.raises(DoesNotFit, match=r"model\.scale"):
        load_plain(gpt, whole, world)
    with pytest.raises(OSError, match="none"):
        load_plain(gpt.with_name("none"), whole, world)


def test_one_plain_file_loads_into_any_layout(tmp_path):
    odd, gpt = tmp_path / "odd.safetensors", tmp_path / "gpt.safetensors"
    for path, model in ((odd, Odd(0)), (gpt, recovery.gpt(0))):
        save_file({**dict(model.named_parameters()), **dict(model.named_buffers())}, path)
    run(loads_plain, 2, (odd, gpt, tmp_path))
    for name, path in {"whole": odd, "zero3": odd, "tensor parallel": gpt}.items():
        found, expected = read_tensors(tmp_path / name, prefix="model."), load_file(path)
        assert found.keys() == expected.keys()
        assert all(torch.equal(x, expected[key]) for key, x in found.items())


def refuses_plain(world, folder):
    """Return whether the error of each broken file names the file, and nothing has changed."""
    model = FullyShardedModule(Odd(1), world)
    before = [x.clone() for x in model.parameters()]
    for name in ("none", "empty", "text", "half", "without its end"):
        with pytest.raises(OSError, match=f"{folder / name}"):
            load_plain(folder / name, model, world)
    with pytest.raises(DoesNotFit, match="scale.* U16"):
        load_plain(folder / "of another dtype", model, world)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_plain_file_that_is_not_whole_changes_nothing(tmp_path):
    model, path = Odd(0), tmp_path / "of another dtype"
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    save_file(state, path)
    data = path.read_bytes()
    for name, text in {
        "empty": b"",
        "text": b"<html> Not found </html>",
        "half": data[:100],
        "without its end": data[:-1],
    }.items():
        (tmp_path / name).write_bytes(text)
    save_file({**state, "scale": torch.ones((), dtype=torch.uint16)}, path)
    run(refuses_plain, 2, (tmp_path,))
