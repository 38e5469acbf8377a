"""The serial step: against torch's own pieces, and against what it must do to a loss."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from labkit import run
from labkit.combined import train_3d
from labkit.context_parallel import gpt_cp
from labkit.data import IGNORED, Batch, Batches, Corpus
from labkit.data_parallel import ddp
from labkit.model import GPT, GPTConfig
from labkit.moe import train_moe
from labkit.moe.routing import MoEConfig
from labkit.pipeline import gpt_pp
from labkit.tensor_parallel import gpt_tp
from labkit.train import TrainConfig, Trained, loss, train_serial, train_step
from tests.serial_runs import one_thread  # noqa: F401

CONFIG = GPTConfig(context=16, num_layers=1, hidden=16, num_heads=2)
SETTINGS = TrainConfig(num_steps=4, num_sequences=7, dtype=torch.float64)


def global_batch(num_sequences: int = 7):
    return Batches(Corpus.standard_library(), num_sequences, CONFIG.context).at(0)


def gpt() -> GPT:
    return GPT(CONFIG, dtype=torch.float64)


def test_the_defaults_learn_within_twenty_steps():
    losses = train_serial(GPTConfig(), TrainConfig()).losses
    assert len(losses) == 20
    assert losses[0] == pytest.approx(math.log(256), abs=0.3)  # it knows nothing yet
    assert sum(losses[-5:]) / 5 < losses[0] - 1.5


def test_the_loss_is_the_mean_surprise_at_the_next_token():
    batch, model = global_batch(), gpt()
    surprises = [
        -model(batch.inputs_BT)[b, t].softmax(0)[batch.targets_BT[b, t]].log()
        for b in range(2)
        for t in range(16)
    ]
    value = loss(model, batch.share(0, 4))  # its first two sequences
    torch.testing.assert_close(value, torch.stack(surprises).mean())


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
def test_weighted_gradients_of_the_shares_add_up_to_that_of_the_batch(size):
    batch, model = global_batch(), gpt()
    expected = torch.autograd.grad(loss(model, batch), list(model.parameters()))
    totals = [torch.zeros_like(grad) for grad in expected]
    for rank in range(size):
        share = batch.share(rank, size)
        grads = torch.autograd.grad(loss(model, share), list(model.parameters()))
        for total, grad in zip(totals, grads, strict=True):
            total += len(share) / len(batch) * grad
    torch.testing.assert_close(totals, list(expected))


class PaddedBatches(Batches):
    """The n-th sequence has n targets, and those of the third do not count at all."""

    def at(self, step):
        batch = super().at(step)
        targets_BT = batch.targets_BT.clone()
        for row, targets_T in enumerate(targets_BT):
            targets_T[0 if row == 3 else row :] = IGNORED
        return Batch(batch.inputs_BT, targets_BT)


class Padded(TrainConfig):
    def batches(self, corpus, context):
        given = super().batches(corpus, context)
        return PaddedBatches(given.corpus, given.num_sequences, context, given.seed)


PADDED = Padded(num_steps=3, num_sequences=9, optimizer="sgd", dtype=torch.float64)
FOUR_RANKS = replace(CONFIG, num_layers=2, num_heads=4)
MOE = MoEConfig()
WAYS = {
    "dp": ddp.train,
    "cp": gpt_cp.train,
    "tp": gpt_tp.train,
    "pp": gpt_pp.train,
    "3d": partial(train_3d.train, dp=2, pp=2, num_microbatches=2),
    "moe": lambda world, config, settings: train_moe.train(world, config, MOE, settings),
}


def padded_each_way(world):
    return {name: train(world, FOUR_RANKS, PADDED) for name, train in WAYS.items()}


def test_padded_targets_count_nowhere_in_one_process_or_on_many_ranks():
    batch, model = PADDED.batches(None, CONFIG.context).at(0), GPT(FOUR_RANKS, 0, torch.float64)
    logits_NV = model(batch.inputs_BT).flatten(0, 1)
    of_torch = F.cross_entropy(logits_NV, batch.targets_BT.flatten())
    serial = train_serial(FOUR_RANKS, PADDED)
    assert serial.losses[0] == pytest.approx(of_torch.item(), rel=1e-12)

    of_experts = train_moe.train_serial(FOUR_RANKS, MOE, PADDED, num_groups=4)
    for of_rank in run(padded_each_way, 4).values:
        for name, trained in of_rank.items():
            expected = of_experts if name == "moe" else serial
            assert trained.losses == pytest.approx(expected.losses, rel=1e-9), name
            assert trained.largest_difference(expected) < 1e-9, name


def test_no_sequences_have_the_loss_zero_and_zero_gradients():
    model = gpt()
    value = loss(model, global_batch(1).share(1, 2))
    value.backward()
    assert value == 0
    assert all(not parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_training_equals_a_loop_over_torchs_own_optimizer(name):
    settings = replace(SETTINGS, optimizer=name, learning_rate=0.01)
    ours = train_serial(CONFIG, settings)
    model = gpt()
    optimizer = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1),
        "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    }[name](model.parameters())
    for step, value in enumerate(ours.losses):
        batch = settings.batches(Corpus.standard_library(), CONFIG.context).at(step)
        logits = model(batch.inputs_BT).flatten(0, 1)
        expected = F.cross_entropy(logits, batch.targets_BT.flatten())
        assert value == pytest.approx(expected.item(), rel=1e-12)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
    for parameter_name, parameter in model.named_parameters():
        torch.testing.assert_close(ours.parameters[parameter_name], parameter.detach())


def test_a_step_forgets_the_gradients_of_the_one_before():
    model = gpt()
    optimizer = TrainConfig(optimizer="sgd", learning_rate=1e-9).make_optimizer(model.parameters())
    train_step(model, optimizer, global_batch())
    once = model.norm.weight.grad.clone()
    train_step(model, optimizer, global_batch())
    torch.testing.assert_close(model.norm.weight.grad, once, rtol=1e-6, atol=0)


def test_the_same_settings_give_the_same_run():
    one, two = train_serial(CONFIG, SETTINGS), train_serial(CONFIG, SETTINGS)
    assert one.losses == two.losses
    assert one.largest_difference(two) == 0


def test_another_seed_begins_with_other_parameters():
    settings = replace(SETTINGS, num_steps=0, seed=1)
    expected = Trained([], dict(GPT(CONFIG, seed=1, dtype=torch.float64).named_parameters()))
    assert train_serial(CONFIG, settings).largest_difference(expected) == 0


def test_another_seed_draws_other_batches():
    corpus = Corpus.standard_library()
    one, two = (replace(SETTINGS, seed=seed).batches(corpus, 16).at(0) for seed in (0, 1))
    assert not torch.equal(one.inputs_BT, two.inputs_BT)


def test_a_users_own_text_can_be_learned(tmp_path):
    (tmp_path / "own.txt").write_text("ab" * 50)
    settings = replace(SETTINGS, num_steps=20, learning_rate=0.03)
    losses = train_serial(CONFIG, settings, Corpus.from_file(tmp_path / "own.txt")).losses
    assert losses[-1] < math.log(2) + 0.05  # which two letters there are, if not yet their order


def test_an_empty_corpus_is_refused_and_not_replaced():
    empty = Corpus("nothing", torch.zeros(0, dtype=torch.uint8))
    with pytest.raises(ValueError, match="nothing has 0 bytes"):
        train_serial(CONFIG, SETTINGS, empty)


def test_no_steps_leave_the_initial_parameters():
    trained = train_serial(CONFIG, replace(SETTINGS, num_steps=0))
    assert trained.losses == []
    assert trained.largest_difference(Trained([], dict(gpt().named_parameters()))) == 0


def test_one_changed_number_is_the_largest_difference():
    one = Trained([], {"a": torch.zeros(3), "b": torch.zeros(2)})
    two = Trained([], {"a": torch.tensor([0.0, 0.25, 0.0]), "b": torch.tensor([0.0, -0.5])})
    assert one.largest_difference(two) == 0.5


def test_runs_of_other_models_cannot_be_compared():
    with pytest.raises(ValueError, match="only one of the two has .*'b'"):
        Trained([], {"a": torch.zeros(1)}).largest_difference(
            Trained([], {"a": torch.zeros(1), "b": torch.zeros(1)})
        )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_steps": -1}, "num_steps=-1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"optimizer": "adam"}, "optimizer='adam' is not known; choose adamw or sgd"),
        ({"dtype": torch.int64}, "dtype=torch.int64 has no gradients"),
    ],
)
def test_settings_that_train_nothing_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**values)
