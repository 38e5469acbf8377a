"""States on disk, and masters elsewhere: the same numbers, and the bytes that move."""

import functools
from pathlib import Path

import pytest
import torch
from torch import nn

from labkit import calc, optimizer, run
from labkit.large_batch import LARS
from labkit.memory import Meter
from labkit.zero import Zero1Optimizer, Zero2Optimizer, on_disk

SIZES = [(40, 30), (30, 20), (20,)]
CLASSES = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2}),
    "SGD": (torch.optim.SGD, {"lr": 1e-2}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 1e-2}),
    "lab's AdamW": (optimizer.AdamW, {"learning_rate": 1e-2}),
    "LARS": (LARS, {"learning_rate": 1.0}),
}


def parameters():
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(size, generator=generator)) for size in SIZES]


def stepped(make, given, num_steps=4):
    """The parameters after some steps, on gradients that differ by step."""
    each = make(given)
    for step in range(num_steps):
        sum((parameter**2 * (step + 1)).sum() for parameter in given).backward()
        each.step()
        each.zero_grad()
    return [p.detach().clone() for p in given], each


@pytest.mark.parametrize("name", CLASSES)
def test_an_optimizer_with_states_on_disk_makes_the_same_steps_to_the_bit(name, tmp_path):
    optimizer_class, settings = CLASSES[name]
    expected, _ = stepped(functools.partial(optimizer_class, **settings), parameters())
    found, each = stepped(
        functools.partial(on_disk(optimizer_class, tmp_path), **settings), parameters()
    )
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine, theirs)
    assert sum(x.numel() for x in each.state_tensors()) <= len(SIZES), "torch counts steps"


def test_settings_may_change_between_steps(tmp_path):
    for optimizer_class, name in ((torch.optim.SGD, "lr"), (optimizer.SGD, "learning_rate")):
        w = nn.Parameter(torch.zeros(3))
        each = on_disk(optimizer_class, tmp_path)([w], **{name: 1.0})
        for rate in (1.0, 0.1):
            each.param_groups[0][name] = rate
            w.grad = torch.ones(3)
            each.step()
        torch.testing.assert_close(w.detach(), torch.full((3,), -1.1))


class RunningSum(torch.optim.Optimizer):
    """Its state is a new tensor after each step."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["sum"] = self.state[p].get("sum", 0) + p.grad
            p.sub_(self.state[p]["sum"], alpha=self.param_groups[0]["lr"])


def test_an_optimizer_that_replaces_its_state_tensors_finds_the_new_ones(tmp_path):
    w = nn.Parameter(torch.zeros(3))
    each = on_disk(RunningSum, tmp_path)([w], lr=1.0)
    for _ in range(3):
        w.grad = torch.ones(3)
        each.step()
    assert w.tolist() == [-1.0 - 2.0 - 3.0] * 3


def test_states_that_were_read_do_not_change_with_later_steps(tmp_path):
    w = nn.Parameter(torch.zeros(3))
    each = on_disk(torch.optim.SGD, tmp_path)([w], lr=1.0, momentum=1.0)
    w.grad = torch.ones(3)
    each.step()
    (read,) = each.read_states()
    each.step()
    assert read["momentum_buffer"].tolist() == [1.0] * 3


def test_between_steps_nothing_is_in_memory_and_the_files_go_with_the_optimizer(tmp_path):
    given = parameters()
    each = on_disk(torch.optim.AdamW, tmp_path)(given, lr=1e-2)
    sizes = []
    with Meter() as meter:
        for _ in range(3):
            for parameter in given:
                (parameter**2).sum().backward()
            each.step()
            each.zero_grad()
            sizes.append(meter.live_bytes - sum(p.nbytes for p in given))
    assert max(sizes) <= 4 * len(SIZES), "numbers of steps"
    on_disk_bytes = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert on_disk_bytes >= 2 * sum(p.nbytes for p in given)
    del each
    assert not any(tmp_path.iterdir())


def test_the_bytes_that_move_are_those_of_the_calculator(tmp_path):
    given = [nn.Parameter(torch.zeros(1601)), nn.Parameter(torch.zeros(3200))]
    each = on_disk(torch.optim.AdamW, tmp_path)(given, lr=1e-2)
    moved = []
    for _ in range(3):
        for parameter in given:
            parameter.grad = torch.ones_like(parameter)
        before = each.num_bytes_moved
        each.step()
        moved.append(each.num_bytes_moved - before)
    predicted = calc.offload_traffic_bytes(4801, "fp32", to="disk")
    assert moved == [float(predicted) / 2, float(predicted), float(predicted)], "first only written"


def test_on_disk_masters_stay_in_memory_and_only_moments_move(tmp_path):
    def moves(world, folder):
        made = []

        def disk(params, **settings):
            made.append(on_disk(torch.optim.AdamW, folder)(params, **settings))
            return made[-1]

        given = [nn.Parameter(torch.zeros(1600, dtype=torch.bfloat16)) for _ in range(2)]
        optimizer = Zero1Optimizer(given, disk, world, master_dtype=torch.float32, lr=1e-2)
        for _ in range(2):  # in the first step states are only written
            before = made[-1].num_bytes_moved
            for parameter in given:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        return made[-1].num_bytes_moved - before

    both, moments = (
        calc.offload_traffic_bytes(3200, "zero_paper", to="disk", dp=2, masters_stay=stay)
        for stay in (False, True)
    )
    assert (both, moments) == (2 * 12 * 1600, 2 * 8 * 1600)
    assert run(moves, 2, (str(tmp_path),)).values == [float(moments)] * 2
    seconds = calc.offload_bandwidth(3200, "zero_paper", 2, to="disk", dp=2, masters_stay=True)
    assert seconds.to("B/s") == float(moments) / 2
    with pytest.raises(ValueError, match='masters_stay=True is for to="disk"'):
        calc.offload_traffic_bytes(3200, "zero_paper", to="cpu", masters_stay=True)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sharded_optimizers_take_states_on_disk_and_masters_on_the_cpu(world_size, tmp_path):
    expected, _ = stepped(functools.partial(torch.optim.AdamW, lr=1e-2), parameters())

    def trains(world, folder):
        disk = on_disk(torch.optim.AdamW, Path(folder) / str(world.rank))
        found = []
        for make in (Zero1Optimizer, Zero2Optimizer):
            for optimizer_class, options in (
                (disk, {}),
                (torch.optim.AdamW, {"masters_on": "cpu"}),
            ):
                each = functools.partial(
                    make, optimizer_class=optimizer_class, group=world, lr=1e-2, **options
                )
                found.append(stepped(each, parameters())[0])
        (shard,) = each(parameters()).shards[:1]
        return found, [id(master) for master in shard.masters]

    for found, masters in run(trains, world_size, (str(tmp_path),)).values:
        assert masters, "copies, also where the parameters are on the CPU themselves"
        for after in found:
            for mine, theirs in zip(after, expected, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def test_a_state_dict_holds_what_is_on_disk_and_can_be_loaded_back(tmp_path):
    def saves_and_loads(world, folder):
        disk = on_disk(torch.optim.AdamW, Path(folder) / str(world.rank))

        def make(given):
            return Zero1Optimizer(given, disk, world, lr=1e-2)

        given = parameters()
        _, first = stepped(make, given, 2)
        state = first.state_dict()
        again = [nn.Parameter(p.detach().clone()) for p in given]
        second = make(again)
        second.load_state_dict(state)
        for each, of in ((first, given), (second, again)):
            for parameter in of:
                (parameter**2).sum().backward()
            each.step()
        return [torch.equal(a, b) for a, b in zip(given, again, strict=True)]

    assert run(saves_and_loads, 2, (str(tmp_path),)).values == [[True] * 3] * 2


def test_the_bandwidth_that_hides_it_is_bytes_over_seconds():
    moved = calc.offload_traffic_bytes(7e9, "zero_paper", to="cpu", dp=8)
    assert moved.to("GB") == 3.5
    assert calc.offload_bandwidth(7e9, "zero_paper", 0.5, dp=8).to("GB/s") == 7.0
    assert "7 GB/s" in str(calc.offload_bandwidth(7e9, "zero_paper", 0.5, dp=8))
    with pytest.raises(ValueError, match='to=\'tape\': give "cpu" or "disk"'):
        calc.offload_traffic_bytes(7e9, "zero_paper", to="tape")
    with pytest.raises(ValueError, match="a step takes time"):
        calc.offload_bandwidth(7e9, "zero_paper", 0)
