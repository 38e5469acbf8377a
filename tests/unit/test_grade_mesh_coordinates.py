"""The grader of mesh_coordinates: its truth is the mesh's own, and every mistake has its name."""

import itertools
import math
import random
from pathlib import Path

import pytest

from labkit import calc
from labkit.grade import check
from labkit.grade.graders.mesh_coordinates import GRADER
from labkit.grade.graders.mesh_questions import (
    Asked,
    draw,
    right_coordinates,
    right_crossing,
    right_group,
)
from labkit.grade.workspace import Workspace
from labkit.mesh import Mesh

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "mesh_coordinates"


def coordinates(sizes, rank):
    """By strides, and not by peeling off."""
    names = list(sizes)
    return {
        name: rank // math.prod(sizes[each] for each in names[i + 1 :]) % sizes[name]
        for i, name in enumerate(names)
    }


def group(sizes, rank, axes):
    """Everybody is asked; a tuple."""
    mine = coordinates(sizes, rank)
    everybody = range(math.prod(sizes.values()))
    return tuple(
        other
        for other in everybody
        if all(at == mine[axis] or axis in axes for axis, at in coordinates(sizes, other).items())
    )


def crosses_nodes(sizes, rank, axes, gpus_per_node):
    """By all nodes."""
    return len({each // gpus_per_node for each in group(sizes, rank, axes)}) > 1


def judged(function, answer, seed=0):
    """What comes of answering one function by `answer` of what is known, the others rightly."""
    rights = dict(GRADER.rights)
    rights[function] = answer
    questions = draw(random.Random(seed))
    return GRADER.judge(questions, [rights[each.function](each.known) for each in questions])


def test_other_right_answers_pass():
    verdict = check(NAME, [coordinates, group, crosses_nodes], workspace=WORKSPACE)
    assert verdict, verdict


def test_numbers_of_numpy_are_numbers_and_its_booleans_are_booleans(tmp_path):
    file = tmp_path / "mesh_coordinates.py"
    file.write_text(
        WORKSPACE.solution(NAME).read_text()
        + "\n\nimport numpy as np\nby_hand, of_group, across = coordinates, group, crosses_nodes\n"
        "def coordinates(*a):\n"
        "    return {name: np.int64(at) for name, at in by_hand(*a).items()}\n"
        "def group(*a):\n    return [np.int32(each) for each in of_group(*a)]\n"
        "def crosses_nodes(*a):\n    return np.bool_(across(*a))\n"
    )
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict, verdict


@pytest.mark.parametrize("seed", range(6))
def test_each_mistake_is_known_by_its_answers(seed):
    for function, theories in GRADER.theories.items():
        assert judged(function, GRADER.rights[function], seed) is None
        for theory in theories:
            finding = judged(function, theory.answer, seed)
            assert finding is not None and finding.diagnosis == theory.name, (theory.name, finding)


class World:
    """What a mesh asks of a group, for one rank after the other."""

    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.colors = []

    def split(self, color):
        self.colors.append(color)


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_is_that_of_meshes_that_train(seed, monkeypatch):
    """Ranks are in one group where the mesh splits the world by the same color."""
    monkeypatch.setattr("labkit.mesh.chosen", lambda world: world)
    monkeypatch.setattr(Mesh, "_group", lambda mesh, *axes: mesh.rank_at(**dict.fromkeys(axes, 0)))
    meshes = {asked.known.sizes for asked in draw(random.Random(seed))}
    for sizes in meshes:
        num_ranks = math.prod(size for _, size in sizes)
        if num_ranks > 64:
            continue
        seen = [Mesh(World(rank, num_ranks), **dict(sizes)) for rank in range(num_ranks)]
        axes = tuple(name for name, _ in sizes)[-2:]
        for rank, mesh in enumerate(seen):
            assert mesh.coordinates == right_coordinates(Asked(sizes, rank))
            same = [r for r, its in enumerate(seen) if its.joined(*axes) == mesh.joined(*axes)]
            assert same == right_group(Asked(sizes, rank, axes))


def test_the_truth_is_that_of_the_calculators_layouts():
    layout = calc.Layout(world_size=48, tp=4, pp=2, cp=3)
    sizes = tuple(layout.sizes.items())
    for rank, axis in itertools.product(range(48), layout.sizes):
        assert right_coordinates(Asked(sizes, rank)) == layout.coordinates(rank)
        assert right_group(Asked(sizes, rank, (axis,))) == list(layout.group(axis, rank))


def test_what_an_interviewer_hears():
    """Rank 45 of pp 2 x dp 8 x tp 4, on nodes of 8."""
    sizes = (("pp", 2), ("dp", 8), ("tp", 4))
    assert right_coordinates(Asked(sizes, 45)) == {"pp": 1, "dp": 3, "tp": 1}
    assert right_group(Asked(sizes, 45, ("tp",))) == [44, 45, 46, 47]
    assert right_group(Asked(sizes, 45, ("dp",))) == [33, 37, 41, 45, 49, 53, 57, 61]
    assert right_group(Asked(sizes, 45, ("pp",))) == [13, 45]
    assert len(right_group(Asked(sizes, 45, ("pp", "dp")))) == 16
    assert not right_crossing(Asked(sizes, 45, ("tp",), 8))
    assert right_crossing(Asked(sizes, 45, ("dp",), 8))


@pytest.mark.parametrize("seed", range(12))
def test_the_traps_are_there(seed):
    questions = [each.known for each in draw(random.Random(seed))]
    lengths = {asked.lengths for asked in questions}
    for place in (0, 1, -1):
        assert any(len(each) == 3 and each[place] == 1 for each in lengths)
    assert any(size & (size - 1) for each in lengths for size in each)
    assert any(len(each) == 1 for each in lengths) and any(len(each) == 5 for each in lengths)
    joined = [asked for asked in questions if len(asked.axes) > 1]
    assert any(list(asked.chosen) != sorted(asked.chosen) for asked in joined)
    assert any(max(asked.chosen) - min(asked.chosen) > 1 for asked in joined)
    nodes = [asked for asked in questions if asked.gpus_per_node]
    assert {right_crossing(asked) for asked in nodes} == {True, False}
    fits_but_crosses = [
        asked
        for asked in nodes
        if right_crossing(asked)
        and right_group(asked)[-1] - right_group(asked)[0] < asked.gpus_per_node
    ]
    assert fits_but_crosses
    assert [each.known for each in draw(random.Random(seed + 100))] != questions


@pytest.mark.parametrize(
    ("function", "answer", "is_form"),
    [
        ("coordinates", {"dp": 0}, True),
        ("coordinates", [0, 1], False),
        ("coordinates", {"dp": 0.0}, False),
        ("coordinates", None, False),
        ("group", (0, 1), True),
        ("group", [0.0], False),
        ("group", 3, False),
        ("crosses_nodes", False, True),
        ("crosses_nodes", 1, False),
        ("crosses_nodes", None, False),
    ],
)
def test_the_form_of_an_answer(function, answer, is_form):
    assert bool(GRADER.wrong_form(function, answer)) is not is_form


def test_what_no_theory_explains_says_on_which_meshes():
    finding = judged("coordinates", lambda a: right_coordinates(a) if 1 not in a.lengths else {})
    assert finding.diagnosis == "other coordinates" and "an axis of one rank" in finding.explanation
    finding = judged("group", lambda a: right_group(a) if len(a.axes) == 1 else [0])
    assert finding.diagnosis == "another group" and "several axes" in finding.explanation
    finding = judged("crosses_nodes", lambda a: True)
    assert finding.diagnosis == "wrong about nodes"


def test_asking_the_mesh_is_refused(tmp_path):
    solution = WORKSPACE.solution(NAME).read_text()
    first = "    found = {}\n"
    assert first in solution
    attempt = "    try: labkit.mesh._size('dp', 2)\n    except Exception: pass\n"
    file = tmp_path / "mine.py"
    file.write_text("import labkit.mesh\n" + solution.replace(first, attempt + first, 1))
    verdict = check(NAME, file, workspace=WORKSPACE)
    assert verdict.diagnosis == "calls the answer itself", verdict
