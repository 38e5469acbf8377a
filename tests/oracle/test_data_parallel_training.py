"""A small GPT on real ranks against the serial oracle, with shares that differ in size.

tests/serial_runs.py says how closely it follows. Measured: losses differ by up to 1.1e-6 in
float32 (allowed about 8e-6), by 2e-15 in float64 (allowed about 1.4e-14).
"""

from dataclasses import replace

import pytest
import torch
from torch import nn

from labkit import Group, RankError, run
from labkit.collectives import ring_all_reduce
from labkit.data_parallel import DDP, BucketedDDP, NaiveDDP, train
from labkit.data_parallel import library_all_reduce as library
from labkit.model import GPT, GPTConfig
from labkit.train import TrainConfig, Trained, train_serial
from tests.serial_runs import distance, one_thread, tolerances  # noqa: F401

CONFIG = GPTConfig(context=32, num_layers=1, hidden=32, num_heads=2)
SEVEN = TrainConfig(num_sequences=7, num_steps=2)  # divides by none of 2, 3 and 4
SETTINGS = {
    "adamw": SEVEN,
    "sgd": replace(SEVEN, optimizer="sgd", learning_rate=0.1),
    "adamw in float64": replace(SEVEN, dtype=torch.float64),
}
LADDER = {"naive": NaiveDDP, "bucketed": BucketedDDP, "overlapped": DDP}
# Optimizers and dtypes have the same effect on every rung, so one rung each is enough.
RUNS = [("bucketed", "adamw in float64"), ("overlapped", "adamw in float64")]
RUNS += [("naive", "adamw"), ("overlapped", "sgd")]


@pytest.fixture(scope="module")
def serial() -> dict[str, Trained]:
    return {name: train_serial(CONFIG, settings) for name, settings in SETTINGS.items()}


@pytest.fixture(scope="module")
def tolerance(serial) -> dict[torch.dtype, float]:
    return tolerances(serial, "adamw")


def train_each(world: Group) -> dict[tuple[str, str], Trained]:
    return {
        (rung, name): train(world, CONFIG, SETTINGS[name], None, library, LADDER[rung])
        for rung, name in RUNS
    }


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(request) -> list[dict[tuple[str, str], Trained]]:
    return run(train_each, request.param).values


def test_the_tolerances_are_rounding_and_nothing_else(tolerance):
    assert 1e-7 < tolerance[torch.float32] < 5e-5
    assert 1e-16 < tolerance[torch.float64] < 1e-13


@pytest.mark.parametrize(("rung", "name"), RUNS)
def test_steps_follow_the_serial_losses(ranks, serial, tolerance, rung, name):
    for trained in ranks:
        assert distance(trained[rung, name], serial[name]) < tolerance[SETTINGS[name].dtype]


@pytest.mark.parametrize(("rung", "name"), RUNS)
def test_the_parameters_end_where_the_serial_ones_do(ranks, serial, tolerance, rung, name):
    for trained in ranks:
        difference = trained[rung, name].largest_difference(serial[name])
        assert difference < tolerance[SETTINGS[name].dtype]


@pytest.mark.parametrize(("rung", "name"), RUNS)
def test_the_parameters_are_the_same_bits_on_every_rank(ranks, rung, name):
    # Not across orders of adding: the ranks apply one and the same sum.
    first = ranks[0][rung, name]
    assert all(trained[rung, name].largest_difference(first) == 0 for trained in ranks)


class Summed(NaiveDDP):
    """The mean is forgotten: gradients are n times too large."""

    def reduce_gradients(self):
        super().reduce_gradients()
        for parameter in self.module.parameters():
            parameter.grad *= self.group.size


class NotReduced(NaiveDDP):
    """Every rank follows its own gradients."""

    def reduce_gradients(self):
        pass


class EqualWeights(NaiveDDP):
    """A mean of means, though the shares differ in size."""

    def reduce_gradients(self):
        part = (3, 2, 2)[self.group.rank] / 7
        for parameter in self.module.parameters():
            parameter.grad /= part * self.group.size
        super().reduce_gradients()


def train_wrongly(world: Group, mistake: type[NaiveDDP], settings: TrainConfig) -> Trained:
    return train(world, CONFIG, settings, None, library, mistake)


@pytest.mark.parametrize("mistake", [Summed, NotReduced, EqualWeights])
def test_a_wrong_average_differs_from_the_oracle_at_the_first_steps(serial, tolerance, mistake):
    wrong = run(train_wrongly, 3, args=(mistake, SETTINGS["sgd"])).values[0]
    assert distance(wrong, serial["sgd"]) > 100 * tolerance[torch.float32]


def test_adamw_hides_a_sum_instead_of_the_mean(serial):
    # Its step is the gradient over the gradient's own size: 3 times both is the same step. This is
    # why the mistakes above are tried with SGD.
    wrong = run(train_wrongly, 3, args=(Summed, SETTINGS["adamw"])).values[0]
    assert distance(wrong, serial["adamw"]) < 1e-3


def test_ranks_without_a_share_take_part(tolerance):
    settings = replace(SETTINGS["sgd"], num_sequences=2)
    expected = train_serial(CONFIG, settings)
    for trained in run(train, 4, args=(CONFIG, settings, None, library, DDP)).values:
        assert distance(trained, expected) < tolerance[torch.float32]


def test_another_all_reduce_can_replace_the_librarys(serial, tolerance):
    result = run(train, 3, args=(CONFIG, SETTINGS["sgd"], None, ring_all_reduce))
    assert distance(result.values[0], serial["sgd"]) < tolerance[torch.float32]
    assert result.traffic[0].by_operation["all_reduce"].count == 1  # sums the losses, at the end


def test_a_step_reduces_every_parameter_once():
    result = run(train, 4, args=(CONFIG, replace(SEVEN, num_steps=3)))
    parameters = list(GPT(CONFIG).parameters())  # the tied head is no parameter of its own
    gradient_bytes = 3 * 4 * sum(parameter.numel() for parameter in parameters)
    losses_bytes = 3 * 8
    for traffic in result.traffic:
        reduced = traffic.by_operation["all_reduce"]
        assert reduced.count == 3 * len(parameters) + 1
        assert reduced.payload_bytes == gradient_bytes + losses_bytes
        assert reduced.sent_bytes == pytest.approx(2 * 3 / 4 * reduced.payload_bytes, rel=0.01)


def test_the_timeline_names_the_phases_of_a_step():
    result = run(train, 2, args=(CONFIG, replace(SEVEN, num_steps=2)))
    phases = ["forward", "backward", "reduce", "optimizer"]
    for timeline in result.timeline:
        assert [region.name for region in timeline.regions] == 2 * phases


class Small(nn.Module):
    """A tied weight, a frozen one, a buffer, and one that forward uses only when asked to."""

    def __init__(self, fill: float) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2, bias=False)
        self.tied = nn.Linear(2, 2, bias=False)
        self.frozen = nn.Linear(2, 2, bias=False).requires_grad_(False)
        self.extra = nn.Linear(2, 2, bias=False)
        self.register_buffer("offset", torch.full((3,), fill))
        for parameter in self.parameters():
            nn.init.constant_(parameter, fill)
        self.tied.weight = self.first.weight

    def forward(self, x, use_extra: bool = True):
        y = self.frozen(self.tied(self.first(x)))
        return self.extra(y) if use_extra else y


def state_after_construction(world: Group) -> dict[str, torch.Tensor]:
    return NaiveDDP(Small(fill=1.0 + world.rank), world).module.state_dict()


def test_construction_copies_parameters_and_buffers_from_rank_0():
    expected = Small(fill=1.0).state_dict()
    for state in run(state_after_construction, 3).values:
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in expected)


def gradients(world: Group) -> tuple[dict, dict]:
    model = NaiveDDP(Small(fill=1.0))  # as a script under torchrun would: the default group
    model(torch.full((1, 2), 1.0 + world.rank)).sum().backward()
    own = {name: p.grad.clone() for name, p in model.module.named_parameters() if p.requires_grad}
    model.reduce_gradients()
    assert model.module.frozen.weight.grad is None
    return own, {name: model.module.get_parameter(name).grad for name in own}


def test_without_a_group_the_result_is_the_plain_mean_over_all_ranks():
    values = run(gradients, 3).values
    for name in ("first.weight", "extra.weight"):
        mean = sum(own[name] for own, _ in values) / 3
        for _, reduced in values:
            torch.testing.assert_close(reduced[name], mean)


def leave_one_out_on_rank_1(world: Group) -> None:
    model = NaiveDDP(Small(fill=1.0), world)
    model(torch.ones(1, 2), use_extra=world.rank != 1).sum().backward()
    model.reduce_gradients()


def test_a_parameter_without_a_gradient_is_named_on_its_rank():
    with pytest.raises(RankError, match="rank 1 has no gradient for extra.weight") as caught:
        run(leave_one_out_on_rank_1, 2)
    assert caught.value.rank == 1


def build_another_model_on_rank_1(world: Group, difference: str) -> None:
    module = nn.Linear(3, 2 + (difference == "shape") * world.rank)
    if difference == "frozen" and world.rank == 1:
        module.bias.requires_grad_(False)
    NaiveDDP(module, world)


@pytest.mark.parametrize("difference", ["shape", "frozen"])
def test_a_rank_with_another_model_is_named_before_anything_is_copied(difference):
    with pytest.raises(RankError, match="rank 1 has .* differ from rank 0") as caught:
        run(build_another_model_on_rank_1, 2, args=(difference,))
    assert caught.value.rank == 1
