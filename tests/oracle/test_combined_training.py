"""A small GPT over dp, tp and pp at once, with ZeRO-1 and clipping, against the serial oracle.

How closely can it follow? As in test_pipeline_training.py: the serial run in float32 leaves the one
in float64 by what rounding does, and sums in another order round no worse; GUARD times that covers
other processors. In float64 the same growth starts from a smaller eps.
"""

from collections import defaultdict
from dataclasses import replace
from functools import partial

import pytest
import torch

from labkit import RankError, run
from labkit.combined import CombinedTraining, gather_full_state, own_rows, train, weight_of
from labkit.data import Batch
from labkit.mesh import Mesh
from labkit.model import GPT, GPTConfig
from labkit.pipeline import gpipe, interleaved, one_f_one_b, zero_bubble_h1
from labkit.train import TrainConfig, train_serial
from tests.serial_runs import one_thread  # noqa: F401

# 251 tokens of vocabulary and 77 features for no number of ranks; 11 rows neither.
CONFIG = GPTConfig(
    vocab=251, context=9, num_layers=2, hidden=24, num_heads=4, num_kv_heads=2, ffn=77
)
SGD = TrainConfig(
    num_sequences=11, num_steps=2, optimizer="sgd", learning_rate=0.1, dtype=torch.float64
)
SETTINGS = {"sgd": SGD, "adamw": replace(SGD, optimizer="adamw", learning_rate=3e-3)}
ROWS = {
    "gpipe": (gpipe, 3),
    "1f1b": (one_f_one_b, 2),
    "interleaved": (partial(interleaved, virtual=2), 4),  # a multiple of the ranks
    "zero bubble": (zero_bubble_h1, 3),
}
EVENLY = [range(2), range(2, 4)]  # embedding and a block, a block and the head
MAX_NORM = 0.5  # less than the norm of every step
GUARD = 8
# dp, tp, pp; order of the axes; row; optimizer; clipped
CASES = [
    ((2, 2, 2), "tp dp pp", "1f1b", "adamw", True),
    ((2, 1, 2), "pp dp tp", "interleaved", "adamw", True),
    ((1, 1, 3), "dp pp tp", "zero bubble", "adamw", False),
    ((4, 1, 1), "dp pp tp", "1f1b", "adamw", True),
    ((1, 2, 2), "dp tp pp", "zero bubble", "sgd", True),
    ((1, 4, 1), "dp pp tp", "gpipe", "sgd", True),  # two ranks for each key-value head
]


def distance(one, two):
    """The largest difference between two runs' losses."""
    return max(abs(a - b) for a, b in zip(one.losses, two.losses, strict=True))


@pytest.fixture(scope="module")
def serial():
    return {
        (name, is_clipped): train_serial(
            CONFIG, settings, max_norm=MAX_NORM if is_clipped else None
        )
        for name, settings in SETTINGS.items()
        for is_clipped in (False, True)
    }


@pytest.fixture(scope="module")
def tolerance(serial):
    """(losses, parameters), by optimizer."""
    eps = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    found = {}
    for name, settings in SETTINGS.items():
        rounded = train_serial(CONFIG, replace(settings, dtype=torch.float32))
        exact = serial[name, False]
        of_parameters = max(
            (rounded.parameters[each] - exact.parameters[each]).abs().max().item()
            for each in exact.parameters
        )
        found[name] = GUARD * eps * distance(rounded, exact), GUARD * eps * of_parameters
    return found


def trained(world, sizes, order, row, optimizer, is_clipped):
    make, num_microbatches = ROWS[row]
    return train(
        world,
        CONFIG,
        SETTINGS[optimizer],
        **dict(zip(("dp", "tp", "pp"), sizes, strict=True)),
        row=make,
        num_microbatches=num_microbatches,
        max_norm=MAX_NORM if is_clipped else None,
        order=order.split(),
    )


def num_ranks_of(sizes):
    dp, tp, pp = sizes
    return dp * tp * pp


@pytest.mark.parametrize(("sizes", "order", "row", "optimizer", "is_clipped"), CASES)
def test_losses_and_all_parameters_follow_the_serial_run(
    serial, tolerance, sizes, order, row, optimizer, is_clipped
):
    expected, (of_losses, of_parameters) = serial[optimizer, is_clipped], tolerance[optimizer]
    case = (sizes, order, row, optimizer, is_clipped)
    for each in run(trained, num_ranks_of(sizes), case, timeout=600).values:
        assert distance(each, expected) <= of_losses
        assert each.largest_difference(expected) <= of_parameters


def test_rotary_positions_need_no_weight_on_any_stage(tolerance):
    config = replace(CONFIG, rotary=True, num_heads=4, num_kv_heads=2)
    expected = train_serial(config, SGD)
    for each in run(partial(train, tp=2, pp=2), 4, (config, SGD)).values:
        assert distance(each, expected) <= tolerance["sgd"][0]


def test_clipping_and_the_optimizers_make_a_difference_that_the_tolerance_sees(serial, tolerance):
    for name, (of_losses, of_parameters) in tolerance.items():
        assert 0 < of_losses < 1e-12 and 0 < of_parameters < 1e-12
        assert distance(serial[name, True], serial[name, False]) > 1e6 * of_losses


def rows_seen(world, sizes, num_rows):
    """The numbers of the rows that went into this rank's pipeline, its place, and their weight."""
    mesh = Mesh(world, **sizes)
    settings = replace(SGD, num_sequences=num_rows)
    training = CombinedTraining(mesh, CONFIG, settings, num_microbatches=1)
    seen, step = [], training.pipeline.step

    def watched(inputs_BT, targets_BT):
        seen.extend(zip(inputs_BT[:, 0].tolist(), targets_BT[:, 0].tolist(), strict=True))
        return step(inputs_BT, targets_BT)

    training.pipeline.step = watched
    numbers_BT = torch.arange(num_rows)[:, None].expand(num_rows, CONFIG.context)
    batch = Batch(numbers_BT, numbers_BT + 1)
    training.step(batch)
    return mesh.coordinates["dp"], seen, weight_of(own_rows(batch, mesh), batch, mesh)


@pytest.mark.parametrize(
    ("sizes", "num_rows"),
    [({"dp": 2, "pp": 2, "tp": 1}, 7), ({"tp": 2, "dp": 3, "pp": 1}, 8)],
)
def test_every_row_of_a_batch_is_seen_once_and_by_all_ranks_of_one_replica(sizes, num_rows):
    num_ranks = torch.tensor(list(sizes.values())).prod().item()
    by_replica = defaultdict(list)
    weights = {}
    for replica, seen, weight in run(rows_seen, num_ranks, (sizes, num_rows)).values:
        by_replica[replica].append(seen)
        weights[replica] = (weight, len(seen))
    assert len(by_replica) == sizes["dp"]
    for first, *others in by_replica.values():
        assert len(others) == num_ranks // sizes["dp"] - 1
        assert all(each == first for each in others)
    everything = [pair for first, *_ in by_replica.values() for pair in first]
    assert sorted(everything) == [(row, row + 1) for row in range(num_rows)]
    # The mean over replicas of what each row counts in its own mean is 1 / num_rows.
    for weight, num_own in weights.values():
        assert weight / num_own / sizes["dp"] == pytest.approx(1 / num_rows)


def held(world):
    """Numbers that a rank keeps: parameters, and states of its optimizer after a step."""
    mesh = Mesh(world, dp=2, pp=2, tp=2)
    training = CombinedTraining(mesh, CONFIG, SETTINGS["adamw"], num_microbatches=2, layers=EVENLY)
    training.step(SGD.batches(None, CONFIG.context).at(0))
    own = sum(parameter.numel() for parameter in training.model.parameters())
    states = training.optimizer.state_tensors()
    return own, sum(state.numel() for state in states)


def test_a_rank_holds_a_share_of_a_stage_and_half_of_its_states():
    whole = GPT(CONFIG)
    num_tied = whole.head.weight.numel()
    num_blocks = sum(p.numel() for p in whole.blocks.parameters())
    for own, states in run(held, 8).values:
        # Half of the tied weight, which is on both stages, a quarter of the blocks; and all of
        # positions and norms.
        assert own < 1.1 * (num_tied / 2 + num_blocks / 4) < 0.5 * whole.num_parameters
        assert abs(states - 2 * own / 2) <= 2  # Adam's two, of a half


def drifted(world, name, sizes):
    """A copy that somebody has changed: on one rank, of those that hold it."""
    mesh = Mesh(world, **sizes)
    training = CombinedTraining(mesh, CONFIG, SGD, num_microbatches=2)
    own = training.model.gpt_parameters()
    if name in own and world.rank == world.size - 1:
        with torch.no_grad():
            own[name].view(-1)[0].mul_(1 + 1e-15)
    gather_full_state(training.model)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("norm.weight", {"dp": 1, "pp": 1, "tp": 2}),
        ("embedding.token.weight", {"dp": 1, "pp": 2, "tp": 1}),  # the head, on the last stage
        ("blocks.1.mlp.up.weight", {"dp": 2, "pp": 1, "tp": 2}),
    ],
)
def test_copies_that_have_drifted_apart_are_named(name, sizes):
    with pytest.raises(RankError, match=f"copies of {name} differ between ranks"):
        run(drifted, num_ranks_of(sizes.values()), (name, sizes))


def wrong(world, **choices):
    given = {"config": CONFIG, "settings": SGD, "dp": 2, "num_microbatches": 1} | choices
    train(world, given.pop("config"), given.pop("settings"), **given)


def on_another_mesh(world):
    CombinedTraining(Mesh(world, dp=2, pp=1), CONFIG, SGD)


def test_a_mesh_of_other_axes_is_refused():
    with pytest.raises(RankError, match="make it of dp, pp and tp, with 1 for what is not wanted"):
        run(on_another_mesh, 2)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"dp": 3}, r"dp=3.*makes 3 ranks, but there are 2"),
        ({"order": ("dp", "tp")}, "make it of dp, pp and tp"),
        (
            {"num_microbatches": 6},
            "num_sequences=11 over dp=2 leaves shares of 5.*12 or more.*5 or",
        ),
        ({"max_norm": 0}, "max_norm=0: a norm above 0"),
        ({"dp": 1, "tp": 2, "config": replace(CONFIG, num_heads=3, num_kv_heads=1)}, "2 ranks can"),
        ({"dp": 1, "pp": 2, "row": partial(interleaved, virtual=3)}, "microbatches"),
        ({"num_microbatches": 0}, "num_microbatches=0"),
        ({"layers": [range(3)]}, "layers=.* give each stage one or more"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_a_reason(choices, words):
    with pytest.raises(RankError, match=words):
        run(partial(wrong, **choices), 2)
