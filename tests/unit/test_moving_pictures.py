"""Moving pictures: the steps are those of the run, and a page stores a picture of the whole run."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from labkit import run, viz
from labkit.checkpoint.power_cut import Operation
from labkit.collectives import ring_all_reduce
from labkit.model import GPTConfig
from labkit.moe import ExpertParallelMoE, MoEConfig, expert_load
from labkit.notebook import moving
from labkit.notebook.moving.widget import HINT, module_text
from labkit.pipeline import gpipe, one_f_one_b, plan, simulate
from labkit.serving import PagedCache
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


PICTURES = ("ring", "bars", "experts", "cuts", "pages")


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_and_the_player_are_one_module(name):
    text = module_text(name)
    assert "import " not in text.replace("import step", "")
    assert text.count("export default forAnywidget") == 1 and "export function player" in text


def test_what_a_page_stores_says_to_run_the_cell_and_shows_the_whole_run(ring, monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    picture = moving.ring(ring, title="a ring </script>")
    monkeypatch.setattr(picture.still, "show", lambda: shown.append(picture.still))
    picture._ipython_display_()
    view, still = shown
    assert view["application/vnd.jupyter.widget-view+json"]["model_id"] == picture.model_id
    assert HINT in view["text/html"] and view["text/plain"] == HINT
    place = re.search(
        'data-picture="ring"><script type="application/json">(.*)</script>', view["text/html"]
    )
    assert json.loads(place[1]) == picture.data and place[1].count("</") == 0
    assert repr(still) == repr(picture) == "<ring of 4 ranks in 6 steps>"
    assert len(json.dumps(picture.data)) < 10_000


def test_a_schedules_steps_say_who_works_and_how_many_microbatches_each_rank_holds():
    timing = simulate(plan(one_f_one_b, 2, 3))
    data = moving.schedule(timing).data
    assert data["steps"][0]["at"] == 0 and data["steps"][-1]["at"] == data["end"] == timing.makespan
    bars = [(b["start"], b["end"], b["text"]) for row in data["rows"] for b in row["bars"]]
    assert bars == [(s.start, s.end, str(s.op.microbatch)) for _, s in timing.spans()]
    by_time = {step["at"]: step for step in data["steps"]}
    assert "rank 0 forward of 1, rank 1 forward of 0" in by_time[2]["say"]
    assert by_time[2]["notes"] == ["2", "1"]
    assert "idle" in by_time[data["end"]]["say"]
    assert max(int(step["notes"][0]) for step in data["steps"]) == 2
    with pytest.raises(ValueError, match="9 ranks"):
        moving.schedule(simulate(plan(gpipe, 9, 2)))


def two_in_flight(world):
    x, y, word = torch.ones(100), torch.ones(50), torch.ones(1)
    if world.rank == 1:  # nothing can end on rank 0 before both are in flight there
        world.recv(word, 0)
    with world.region("backward"):
        with world.label("first"):
            one = world.all_reduce(x, wait=False)
        with world.label("second"):
            other = world.all_reduce(y, wait=False)
    if world.rank == 0:
        world.send(word, 1)
    one.wait()
    other.wait()


def test_a_windows_steps_are_what_a_rank_posts_and_takes():
    result = run(two_in_flight, 2)
    data = moving.timeline(result, (0.0, result.timeline[0].end_s), kinds=("all_reduce",)).data
    says = " ".join(step["say"] for step in data["steps"])
    words = ["posts the all_reduce of first, 400 B", "posts the all_reduce of second"]
    words += ["takes the result of the all_reduce of first", "takes the result of the all_reduce"]
    assert [says.index(each) for each in words[:3]] == sorted(
        says.index(each) for each in words[:3]
    )
    assert [step["notes"][0] for step in data["steps"]] == ["0", "1", "2", "1", "0", "0"]
    assert any(bar.get("of", 1) > 1 for bar in data["rows"][0]["bars"])
    with pytest.raises(ValueError, match="0 operations"):
        moving.timeline(result, (0.0, 1.0), kinds=("broadcast",))


def one_layer(world):
    x_BTD = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(world.rank))
    layer = ExpertParallelMoE(
        GPTConfig(hidden=8, num_heads=2), MoEConfig(num_experts=4, top_k=2, expert_ffn=8), world
    )
    return expert_load(layer(x_BTD)[1], world)


def test_rows_go_to_the_ranks_of_their_experts_and_come_back():
    result = run(one_layer, 2)
    load = result.values[0]
    data = moving.experts(result, load).data
    home, away = data["places"]
    assert data["per_square"] == 1 and len(home) == sum(load.by_expert) == 32
    assert [sum(row[1] == rank for row in away) for rank in (0, 1)] == list(load.by_rank)
    assert [row[0] for row in home] == [row[0] for row in away] == [row[1] for row in home]
    assert data["counts"] == [[16, 16], list(load.by_rank), list(load.by_rank), [16, 16]]
    crossing = sum(source != rank for source, rank, _ in away)
    assert f"{crossing} of 32 rows" in data["steps"][1]["say"]
    with pytest.raises(ValueError, match="no all_to_all labelled 'dispatch'"):
        moving.experts(run(one_ring, 2), load)


def test_a_save_has_a_step_for_each_operation_and_says_what_a_load_gives():
    performed = [
        Operation(1, "create", Path("rank-1.bin"), ""),
        Operation(2, "rename", Path("step-1.partial"), "step-1"),
    ]
    data = moving.power_cuts(performed, {"all kept": [None, 1], "names lost": [None, "mixed"]}).data
    assert [each["rank"] for each in data["operations"]] == [1, 0] and data["rows"] == 2
    assert "all kept: no checkpoint" in data["steps"][1]["say"]
    assert data["steps"][2]["say"].startswith("Rank 0: rename step-1.partial.")
    assert [state["text"] for state in data["outcomes"][1]["found"]] == ["·", "!"]


def test_shots_of_a_cache_keep_who_holds_which_slot():
    cache, shots = PagedCache(GPTConfig(), num_pages=3, page_size=2), []
    assert cache.reserve(7, 3, 4)
    shots.append(moving.shot(cache, {7: "abc"}, "reserved"))
    cache.free(7)
    shots.append(moving.shot(cache, {7: ""}, "freed"))
    data = moving.pages(shots, moving_still(cache)).data
    held = [[len(slot["held"]) for slot in each["slots"]] for each in data["shots"]]
    assert sum(held[0]) == 4 and sum(held[1]) == 0
    assert data["names"] == ["sequence 7"] and data["shots"][1]["places"] == ["nothing"]
    with pytest.raises(ValueError, match="0 shots"):
        moving.pages([], moving_still(cache))


def moving_still(cache):
    return viz.cache_map(cache, {})
