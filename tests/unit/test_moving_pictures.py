"""Moving pictures: the steps are those of the run, and a page stores a picture of the whole run."""

import dataclasses
import json

import pytest
import torch

from labkit import run
from labkit.collectives import ring_all_reduce
from labkit.notebook import moving
from labkit.notebook.moving.widget import HINT, module_text
from labkit.viz.rings import ring_walk


def one_ring(world):
    ring_all_reduce(torch.ones(10), world)


@pytest.fixture(scope="module")
def ring():
    return run(one_ring, 4)


def test_a_rings_steps_are_the_runs(ring):
    data, walk = moving.ring(ring).data, ring_walk(ring)
    held = [[[set(ranks) for ranks in row] for row in state] for state in data["states"]]
    assert held == [[[*map(set, row)] for row in state] for state in walk.states]
    assert data["hops"][1] == [[0, 1, 2], [1, 2, 3], [2, 3, 0], [3, 0, 1]]
    says = [step["say"] for step in data["steps"]]
    assert len(says) == len(data["states"]) == 7
    assert "rank 3 sends chunk 1 to rank 0" in says[2] and "16 B to 24 B" in says[2]
    assert "Reduce-scatter" in says[3] and "4 of 16" in says[3]
    assert "All-gather" in says[6] and "16 of 16" in says[6]


def test_a_ring_among_some_ranks_is_numbered_by_its_places():
    def odd_ranks_only(world):
        odd = world.split(0 if world.rank % 2 else None)
        if odd:
            ring_all_reduce(torch.ones(4), odd)

    data = moving.ring(run(odd_ranks_only, 4)).data
    assert data["ranks"] == [1, 3] and data["states"][0] == [[[0], [0]], [[1], [1]]]
    assert "rank 1 sends chunk" in data["steps"][1]["say"]


def test_more_ranks_than_can_be_read_are_refused(ring):
    with pytest.raises(ValueError, match="9 ranks"):
        moving.ring(dataclasses.replace(ring_walk(ring), ranks=tuple(range(9))))


PICTURES = ("ring",)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_and_the_player_are_one_module(name):
    text = module_text(name)
    assert "import " not in text.replace("import step", "")
    assert text.count("export default forAnywidget") == 1 and "export function player" in text


def test_what_a_page_stores_says_to_run_the_cell_and_shows_the_whole_run(ring, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    picture = moving.ring(ring, title="a ring")
    monkeypatch.setattr(picture.still, "show", lambda: shown.append(picture.still))
    picture._ipython_display_()
    view, still = shown
    assert view["application/vnd.jupyter.widget-view+json"]["model_id"] == picture.model_id
    assert HINT in view["text/html"] and view["text/plain"] == HINT
    assert repr(still) == repr(picture) == "<ring of 4 ranks in 6 steps>"
    assert len(json.dumps(picture.data)) < 10_000
