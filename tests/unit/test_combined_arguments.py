"""What combined training refuses, before a model is made."""

from functools import partial

import pytest

from labkit import RankError, combined, run
from labkit.combined import CombinedTraining
from labkit.mesh import Mesh, coordinates_at, ranks_along
from labkit.model import GPTConfig
from labkit.train import TrainConfig

CONFIG = GPTConfig(context=7, num_layers=2, hidden=16, num_heads=2)
SETTINGS = TrainConfig(num_sequences=4, num_steps=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": None}, "order=None: give dp, tp and pp, each once"),
        ({"layers": 5}, "layers=5: give a range of layers for each stage"),
        ({"layers": [5]}, r"layers=\[5\]: give a range of layers for each stage"),
        ({"num_microbatches": 0}, "num_microbatches=0"),
    ],
)
def test_what_cannot_be_combined_is_refused(options, words):
    with pytest.raises(RankError, match=words):
        run(partial(combined.train, **options), 1, (CONFIG, SETTINGS))


def without_a_model(world, max_norm):
    """Whoever makes one has come too far."""
    mesh, settings = Mesh(world, dp=1, pp=1, tp=1), TrainConfig(num_sequences=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combined.train_3d, "CombinedGPT", None)
        CombinedTraining(mesh, CONFIG, settings, num_microbatches=2, max_norm=max_norm)


@pytest.mark.parametrize("max_norm", [0, -1, float("nan"), "1"])
def test_a_norm_that_cannot_be_is_refused_before_a_model_is_made(max_norm):
    with pytest.raises(RankError, match="max_norm=.*a norm above 0, such as 1.0"):
        run(without_a_model, 1, (max_norm,))


def made_of(_, *arguments):
    CombinedTraining(*arguments)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, CONFIG, SETTINGS), "mesh=None: give a Mesh"),
    ],
)
def test_another_thing_in_the_place_of_a_mesh_is_refused(given, words):
    with pytest.raises(RankError, match=words):
        run(made_of, 1, given)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ranks_along("tp", 0, {"dp": 2}), "axis='tp': give one of dp"),
        (lambda: coordinates_at(2, {"dp": 2}), "rank=2: 0 to 1"),
    ],
)
def test_places_that_a_mesh_does_not_have_are_refused(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()
