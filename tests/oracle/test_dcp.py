"""Checkpoints between labkit and torch's Distributed Checkpoint (DCP), equal in every bit."""

import copy
import io
import pickle
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from labkit import run
from labkit.checkpoint import Checkpointer, Damaged, DoesNotFit, read_tensors
from labkit.checkpoint.dcp import UntrustedMetadata, _Chunks, load_dcp, save_as_dcp
from labkit.model import GPT, GPTConfig
from labkit.optimizer import AdamW
from labkit.shards import Extent, NamedShard
from labkit.tensor_parallel import parallelize
from labkit.zero import FullyShardedModule, Zero1Optimizer

CONFIG = GPTConfig(vocab=31, context=6, num_layers=1, hidden=18, num_heads=3, ffn=22)


def net(seed):
    """Shapes that divide by no number of ranks, and buffers."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def adam(model, groups=1):
    parameters = list(model.parameters())
    of_groups = [{"params": parameters[k::groups], "lr": 0.1 / (k + 1)} for k in range(groups)]
    return torch.optim.AdamW(of_groups, betas=(0.8, 0.99))


def train(model, optimizer):
    torch.manual_seed(5)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.randn(4, 7)) ** 2).mean().backward()
        optimizer.step()


def zero3(world, seed):
    model = FullyShardedModule(net(seed), world)
    return model, adam(model)


def data_parallel(world, seed):
    model = DistributedDataParallel(net(seed))
    return model, adam(model)


def fsdp2(world, seed, groups=1):
    model = net(seed)
    mesh = init_device_mesh("cpu", (world.size,))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, adam(model, groups)


def whole(state):
    """A state dict of DCP with whole tensors, flat."""
    if isinstance(state, dict):
        flat = {f"{key}.{k}": x for key, each in state.items() for k, x in whole(each).items()}
        return {key.removesuffix("."): x for key, x in flat.items()}
    return {"": state.full_tensor() if isinstance(state, DTensor) else state}


def of_torch(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optim": optimizer_state}


def same(ours, theirs):
    """Return whether labkit's tensors, by name, equal those of a state dict of DCP."""
    theirs = {name.replace("optim.state.", "optimizer."): x for name, x in whole(theirs).items()}
    theirs.pop("optim.param_groups", None)
    ours = {name: x for name, x in ours.items() if not name.startswith("rng.")}
    assert ours.keys() == theirs.keys()
    return all(torch.equal(x, theirs[name]) for name, x in ours.items())


def saves_labkit(world, folder):
    model, optimizer = zero3(world, 0)
    train(model, optimizer)
    Checkpointer(folder, model, optimizer, world).save(2)


def loads_into_torch(world, out, make, ours):
    model, optimizer = make(world, 1)
    state = of_torch(model, optimizer)
    dcp.load(state, checkpoint_id=out)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"]
    )
    group = optimizer.param_groups[0]
    return same(ours, of_torch(model, optimizer)), group["lr"], group["betas"]


@pytest.fixture(scope="module")
def labkits(tmp_path_factory):
    """A checkpoint of ZeRO-3 on 2 ranks, and the DCP folder that is written of it."""
    folder = tmp_path_factory.mktemp("labkit")
    run(saves_labkit, 2, (folder / "ours",))
    save_as_dcp(folder / "ours", folder / "dcp")
    return folder


@pytest.mark.parametrize("make, world_size", [(fsdp2, 3), (data_parallel, 1)])
def test_torch_loads_what_zero3_saved(labkits, make, world_size):
    ours = read_tensors(labkits / "ours")
    values = run(loads_into_torch, world_size, (labkits / "dcp", make, ours)).values
    assert values == [(True, 0.1, (0.8, 0.99))] * world_size


def test_one_file_is_made_of_the_folder(labkits):
    dcp_to_torch_save(labkits / "dcp", labkits / "one.pt")
    state = torch.load(labkits / "one.pt")
    assert same(read_tensors(labkits / "ours"), state)


def gpt_state():
    """Return the state of a model whose head is its embedding, under one name."""
    state = GPT(CONFIG, 0).state_dict()
    state.pop("head.weight")
    return state


def saves_fsdp2(world, folder):
    """A folder for one and for two groups of parameters, and one with more in it; the states."""
    found = []
    for groups in (1, 2):
        model, optimizer = fsdp2(world, 0, groups)
        train(model, optimizer)
        state = of_torch(model, optimizer)
        dcp.save(state, checkpoint_id=folder / f"{groups}")
        found.append(whole(state))
    dcp.save({**state, "epoch": 3}, checkpoint_id=folder / "epoch")
    dcp.save({"model": gpt_state()}, checkpoint_id=folder / "gpt")
    return found


@pytest.fixture(scope="module")
def torchs(tmp_path_factory):
    """The folders of `saves_fsdp2` on 2 ranks, and their states, whole."""
    folder = tmp_path_factory.mktemp("torch")
    return folder, run(saves_fsdp2, 2, (folder,)).values[0]


def sharded(world, seed, groups):
    model = net(seed)
    return model, Zero1Optimizer(adam(model, groups).param_groups, torch.optim.AdamW, world)


def zero3_in_groups(world, seed, groups):
    model = FullyShardedModule(net(seed), world)
    return model, adam(model, groups)


def loads_into_labkit(world, folder, out):
    """Load each folder into each layout, and save it from there: settings by group."""
    found = {}
    for groups in (1, 2):
        for make in (zero3_in_groups, sharded):
            model, optimizer = make(world, 1, groups)
            optimizer.param_groups[0]["lr"] = 7.0
            load_dcp(folder / f"{groups}", model, optimizer, world)
            Checkpointer(out / f"{make.__name__} {groups}", model, optimizer, world).save(2)
            found[make.__name__, groups] = [(g["lr"], g["betas"]) for g in optimizer.param_groups]
    model = parallelize(GPT(CONFIG, 1), world)
    load_dcp(folder / "gpt", model, group=world)
    Checkpointer(out / "gpt", model, None, world).save(2)
    return found


def test_labkit_loads_what_fsdp2_saved_into_any_layout(torchs, tmp_path):
    folder, states = torchs
    for found in run(loads_into_labkit, 3, (folder, tmp_path)).values:
        for (_, groups), settings in found.items():
            assert settings == [(0.1, (0.8, 0.99)), (0.05, (0.8, 0.99))][:groups]
    for name, groups in found:
        assert same(read_tensors(tmp_path / f"{name} {groups}"), states[groups - 1])
    assert same(read_tensors(tmp_path / "gpt"), {"model": gpt_state()})


def test_a_rank_reads_the_chunks_that_it_needs_and_no_others(torchs):
    """The reader is a rank of ZeRO-3 on 2 ranks, whose shards do not end where rows of FSDP2 do."""
    reader = dcp.FileSystemReader(torchs[0] / "1")
    shard = NamedShard("0", Extent.whole((5, 7)).within(18, 35), torch.empty(17))
    chunks = _Chunks({"model.0.weight": shard}, reader.read_metadata())
    assert [list(item.lengths) for item in chunks.plan.items] == [[3, 7], [2, 7]]
    shard = NamedShard("0", Extent.whole((5, 7)).within(21, 35), torch.empty(14))
    chunks = _Chunks({"model.0.weight": shard}, reader.read_metadata())
    assert [list(item.storage_index.offset) for item in chunks.plan.items] == [[3, 0]]


def refuses(world, folder):
    """Try states that do not fit; return the errors, and check that nothing has changed."""
    texts = []
    cases = [
        ("epoch", *zero3_in_groups(world, 1, 2)),
        ("1", FullyShardedModule(nn.Linear(7, 5), world), None),
        ("2", *zero3_in_groups(world, 1, 1)),
        ("1", plain := net(1), AdamW(plain.parameters(), 1e-2)),
        ("1", plain, torch.optim.SGD(plain.parameters(), lr=1.0)),
    ]
    for name, model, optimizer in cases:
        before = [p.clone() for p in model.parameters()]
        with pytest.raises(DoesNotFit) as error:
            load_dcp(folder / name, model, optimizer, world)
        assert all(map(torch.equal, before, model.parameters()))
        texts.append(str(error.value))
    with pytest.raises(OSError, match="metadata"):
        load_dcp(folder / "nothing", model, None, world)
    return texts


def test_what_has_no_place_is_refused_by_name(torchs):
    for epoch, name, groups, own, sgd in run(refuses, 2, (torchs[0],)).values:
        assert "epoch" in epoch
        assert "model.weight" in name
        assert "2 groups" in groups
        assert "labkit.optimizer.AdamW" in own
        assert "'dampening'" in sgd


def saves_own_adam(world, folder):
    model = net(0)
    optimizer = AdamW(model.parameters(), 1e-2)
    train(model, optimizer)
    Checkpointer(folder, model, optimizer, world).save(2)


def test_states_that_torch_does_not_have_are_not_written(tmp_path):
    run(saves_own_adam, 1, (tmp_path / "ours",))
    with pytest.raises(ValueError, match="labkit.optimizer.AdamW"):
        save_as_dcp(tmp_path / "ours", tmp_path / "dcp")
    assert not (tmp_path / "dcp").exists()


def plain_sgd(seed, lr):
    model = net(seed)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def saves_sgd(world, folder):
    """Without momentum there are settings and no states: a folder of DCP, and one of labkit."""
    model, optimizer = plain_sgd(0, 0.5)
    train(model, optimizer)
    dcp.save(of_torch(model, optimizer), checkpoint_id=folder / "torch")
    Checkpointer(folder / "ours", model, optimizer, world).save(2)


def loads_sgd(world, folder):
    model, optimizer = plain_sgd(1, 7.0)
    with pytest.raises(DoesNotFit, match="'betas'"):
        load_dcp(folder / "torch", model, adam(model), world)
    load_dcp(folder / "torch", model, optimizer, world)
    loaded, optimizer_of_torch = plain_sgd(2, 7.0)
    state = of_torch(loaded, optimizer_of_torch)
    dcp.load(state, checkpoint_id=folder / "ours as dcp")
    set_state_dict(
        loaded,
        optimizer_of_torch,
        model_state_dict=state["model"],
        optim_state_dict=state["optim"],
    )
    assert all(map(torch.equal, model.parameters(), loaded.parameters()))
    return optimizer.param_groups[0]["lr"], optimizer_of_torch.param_groups[0]["lr"]


def test_settings_of_an_optimizer_without_states_go_both_ways(tmp_path):
    run(saves_sgd, 1, (tmp_path,))
    save_as_dcp(tmp_path / "ours", tmp_path / "ours as dcp")
    assert run(loads_sgd, 1, (tmp_path,)).values == [(0.5, 0.5)]


def loads_without_a_file(world, folder):
    with pytest.raises(Damaged, match="distcp"):
        load_dcp(folder, *zero3_in_groups(world, 1, 1), world)


def test_a_file_that_is_missing_is_an_error_on_every_rank(torchs, tmp_path):
    """The one with the settings, which one rank has written."""
    (tmp_path / ".metadata").write_bytes((torchs[0] / "1" / ".metadata").read_bytes())
    run(loads_without_a_file, 2, (tmp_path,))


def saves_and_loads_tied_weights(world, folder):
    """The head of this GPT is its embedding."""
    models = [GPT(CONFIG, seed) for seed in (0, 1)]
    for seed, model in enumerate(models):
        fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + seed)
        state = of_torch(model, optimizer)
        state["model"].pop("head.weight")
        if seed == 0:
            dcp.save(state, checkpoint_id=folder)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(
        models[1],
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optim"],
        options=StateDictOptions(strict=False),
    )
    plain = GPT(CONFIG, 2)
    load_dcp(folder, plain, torch.optim.AdamW(plain.parameters(), lr=7.0), world)
    first = [x.full_tensor() for x in models[0].parameters()]
    for model in (models[1], plain):
        found = [x.full_tensor() if isinstance(x, DTensor) else x for x in model.parameters()]
        assert all(map(torch.equal, first, found))
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_tied_weights_of_fsdp2_have_one_name(tmp_path):
    run(saves_and_loads_tied_weights, 2, (tmp_path,))


def saves_versions(world, folder):
    """Folders of AdamW as other versions of torch write them, and of other optimizers."""
    model, optimizer = net(0), None
    for name in ("AdamW", "Adam", "RAdam", "NAdam", "Adamax", "SGD"):
        model = net(0)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.05)
        train(model, optimizer)
        state = of_torch(model, optimizer)
        dcp.save(state, checkpoint_id=folder / name)
        if name == "AdamW":
            (group,) = state["optim"]["param_groups"]
            dcp.save(without(state, "decoupled_weight_decay"), checkpoint_id=folder / "torch 2.6")
            dcp.save(without(state, "maximize"), checkpoint_id=folder / "torch 1")
            dcp.save(without(state, "amsgrad"), checkpoint_id=folder / "no amsgrad")
            newer = {**group, "of_torch_9": 5}
            optim = {**state["optim"], "param_groups": [newer]}
            dcp.save({**state, "optim": optim}, checkpoint_id=folder / "torch 9")


def without(state, key):
    groups = [{k: x for k, x in g.items() if k != key} for g in state["optim"]["param_groups"]]
    return {**state, "optim": {**state["optim"], "param_groups": groups}}


def loads_versions(world, folder):
    """Load each version in the folder; return the parameters after one more step, or the error."""
    found = {}
    for path in sorted(folder.iterdir()):
        model = net(1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=7.0)
        try:
            load_dcp(path, model, optimizer, world)
        except DoesNotFit as error:
            found[path.name] = str(error)
            continue
        train(model, optimizer)
        found[path.name] = optimizer.param_groups[0], [p.detach() for p in model.parameters()]
    return found


def test_a_setting_of_another_version_is_what_torch_makes_it_and_another_class_is_refused(tmp_path):
    run(saves_versions, 1, (tmp_path,))
    (found,) = run(loads_versions, 1, (tmp_path,)).values
    group, expected = found.pop("AdamW")
    for name in ("torch 2.6", "torch 1", "torch 9"):
        its_group, parameters = found.pop(name)
        assert its_group["decoupled_weight_decay"] and its_group["lr"] == 0.05
        assert its_group["maximize"] is False and "of_torch_9" not in its_group
        assert all(map(torch.equal, parameters, expected))
    assert "'amsgrad'" in found["no amsgrad"] and "another optimizer" not in found["no amsgrad"]
    assert "decoupled_weight_decay=False" in found["Adam"]
    assert "decoupled_weight_decay=False" in found["RAdam"]
    assert found.keys() == {"no amsgrad", "Adam", "RAdam", "NAdam", "Adamax", "SGD"}
    assert all(isinstance(text, str) for text in found.values())


class Planted:
    """As a pickle, it makes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def saves_one(world, folder):
    model, optimizer = plain_sgd(0, 0.5)
    train(model, optimizer)
    dcp.save(of_torch(model, optimizer), checkpoint_id=folder / "good")
    dcp.save({**of_torch(model, optimizer)}, checkpoint_id=folder / "setting")


def loads_planted(world, folder):
    """The errors by folder; of those that are loaded, ""."""
    found = {}
    for path in sorted(folder.iterdir()):
        model, optimizer = plain_sgd(1, 7.0)
        before = [p.clone() for p in model.parameters()]
        try:
            load_dcp(path, model, optimizer, world)
            found[path.name] = ""
        except (UntrustedMetadata, Damaged) as error:
            assert all(map(torch.equal, before, model.parameters()))
            found[path.name] = f"{type(error).__name__}: {error}"
    model, optimizer = plain_sgd(1, 7.0)
    load_dcp(folder / "with a plan", model, optimizer, world, trust=True)
    return found


def test_a_folder_of_strangers_runs_nothing_and_reads_no_other_file(tmp_path):
    folder, trace = tmp_path / "folders", tmp_path / "trace"
    run(saves_one, 1, (folder,))
    good = folder / "good"
    metadata = dcp.FileSystemReader(good).read_metadata()

    def planted(name, change):
        shutil.copytree(good, folder / name)
        copied = copy.deepcopy(metadata)
        (folder / name / ".metadata").write_bytes(pickle.dumps(change(copied) or copied))

    def place(copied, fqn):
        return next(info for index, info in copied.storage_data.items() if index.fqn == fqn)

    weight, rate = "model.0.weight", "optim.param_groups.0.lr"
    planted("the whole", lambda copied: Planted(trace))
    planted("with a plan", lambda copied: setattr(copied, "planner_data", print))
    planted("a name", lambda copied: copied.state_dict_metadata.update(x=Planted(trace)))
    planted("no metadata", lambda copied: [1])
    for name, changes in {
        "another file": {"relative_path": "/etc/passwd"},
        "a file above": {"relative_path": "../good/__0_0.distcp"},
        "too long": {"length": 10**9},
        "too short": {"length": 8},
    }.items():
        planted(name, lambda copied, of=changes: vars(place(copied, weight)).update(of))
    planted("a large size", lambda copied: set_size(copied.state_dict_metadata[weight], 10**18))
    planted("no chunk", lambda copied: copied.state_dict_metadata[weight].chunks.clear())
    for name, data in {"cut off": (good / ".metadata").read_bytes()[:-20], "empty": b""}.items():
        shutil.copytree(good, folder / name)
        (folder / name / ".metadata").write_bytes(data)
    # torch's own planner unpickles settings.
    info = place(metadata, rate)
    data = bytearray((folder / "setting" / info.relative_path).read_bytes())
    buffer = io.BytesIO()
    torch.save(Planted(trace), buffer)
    setting = copy.deepcopy(metadata)
    vars(place(setting, rate)).update(offset=len(data), length=len(buffer.getvalue()))
    (folder / "setting" / info.relative_path).write_bytes(data + buffer.getvalue())
    (folder / "setting" / ".metadata").write_bytes(pickle.dumps(setting))

    (found,) = run(loads_planted, 1, (folder,)).values
    assert not trace.exists()
    assert found.pop("good") == ""
    for name in ("the whole", "with a plan", "a name"):
        text = found.pop(name)
        assert text.startswith("UntrustedMetadata") and "trust=True" in text
    assert all(text.startswith("Damaged") and "\n" not in text for text in found.values()), found
    assert "/etc/passwd" in found["another file"] and "not unpickled" in found["setting"]


def set_size(row, numel):
    row.size = torch.Size([numel])
    row.chunks[0].sizes, row.chunks[0].offsets = row.size, torch.Size([0])
