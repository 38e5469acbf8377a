"""Drawings: right ones pass however they were made, and the first wrong cell is named."""

import asyncio
import sys

import pytest
import torch

from labkit import cli, collectives, progress, run
from labkit.interview.draw import UnknownDrawing, all_drawings, get_drawing, read_cells
from labkit.interview.draw.holdings import AFTER
from labkit.notebook import controls, draw
from labkit.notebook.drawings import continued
from labkit.viz.rings import ring_walk
from tests.widget_tree import press, words

DRAWINGS = all_drawings()
OF_MESSAGES = [name for name, each in DRAWINGS.items() if each.columns[0] == "step 1"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_answer_is_right_and_without_any_one_cell_it_is_wrong_from_there_on(name):
    drawing = DRAWINGS[name]
    assert drawing.rule(drawing.answer, keep=False).is_right
    for r, row in list(enumerate(drawing.answer))[:4]:
        for c, cell in enumerate(row):
            if cell:
                cells = [list(each) for each in drawing.answer]
                cells[r][c] = ""
                ruling = drawing.rule(cells, keep=False)
                assert not ruling.is_right
                sends_always = name.startswith(("ring", "halving"))
                is_here = name not in OF_MESSAGES or sends_always
                assert ruling.place == (r, c) if is_here else c <= ruling.place[1]


def test_the_labs_ring_is_right_and_so_is_one_the_other_way_round():
    def reduces(world):
        collectives.ring_all_reduce(torch.ones(4), world)

    walk, drawing = ring_walk(run(reduces, 4)), get_drawing("ring-4")
    cells = drawing.empty
    for s, hops in enumerate(walk.steps):
        for hop in hops:
            cells[hop.source][s] = f"{hop.destination}:{hop.chunk}"
    assert drawing.rule(cells, keep=False).is_right
    mirrored = [[f"{3 - int(cell[0])}:{cell[2]}" for cell in row] for row in cells[::-1]]
    assert drawing.rule(mirrored, keep=False).is_right


def test_halving_may_begin_with_the_farthest_rank():
    cells = [
        ["2:2,3", "1:1", "1:0", "2:0,1"],
        ["3:2,3", "0:0", "0:1", "3:0,1"],
        ["0:0,1", "3:3", "3:2", "0:2,3"],
        ["1:0,1", "2:2", "2:3", "1:2,3"],
    ]
    assert get_drawing("halving-doubling-4").rule(cells, keep=False).is_right


@pytest.mark.parametrize(
    ("name", "place", "cell", "said"),
    [
        ("ring-4", (1, 1), "0:0", "same neighbour"),
        ("ring-4", (0, 3), "1:0", "would count twice"),
        ("ring-4", (2, 0), "3:9", "no chunk 9"),
        ("ring-4", (2, 0), "three", "write 2:0 for chunk 0 to rank 2"),
        ("ring-4", (2, 0), "2:0", "no message from rank 2 to rank 2"),
        ("halving-doubling-4", (0, 0), "1:*", "more than 6 chunks"),
        ("tree-4", (2, 0), "0:0", "already receives from rank"),
        ("broadcast-4", (1, 0), "2:0", "has nothing of chunk 0"),
        ("broadcast-4", (0, 0), "1:0 2:0", "sends to one rank in a step"),
        ("1f1b-3x4", (0, 4), "B0", "slot 5: B0 has to wait"),
        ("1f1b-3x4", (0, 3), "F3", "F3 does not come next"),  # it needs nothing that is missing
        ("1f1b-3x4", (2, 3), "F1", "F1 does not come next"),
        ("1f1b-3x4", (0, 4), "F2", "F2 ran before"),
        ("1f1b-3x4", (0, 4), "I0", "no operation of this rank"),
        ("ring-4", (0, 1), "1:1", "partial sum"),
        ("ring-4", (0, 4), "1:1", "whole chunk"),
        ("tree-4", (1, 0), "", "largest partial sum"),
        ("tree-4", (0, 3), "", "no sum yet"),
        ("heads", (2, 1), "0", "not what this rank has"),
        ("heads", (2, 1), "", "this cell is empty"),
        ("after-reduce", (1, 0), "b0", "nothing here"),
    ],
)
def test_the_first_wrong_cell_says_why(name, place, cell, said):
    drawing = get_drawing(name)
    cells = [list(each) for each in drawing.answer]
    cells[place[0]][place[1]] = cell
    ruling = drawing.rule(cells, keep=False)
    assert not ruling.is_right and said in ruling.text, ruling.text
    assert ruling.text.startswith(drawing.rows[ruling.place[0]])
    assert drawing.hint not in ruling.text


def test_messages_of_a_step_carry_what_was_there_before_it():
    """A sum handed from rank to rank in one step: only in turns would it be whole."""
    cells = [
        ["1:0", "", "", "2:0"],
        ["2:0", "", "", ""],
        ["3:0", "", "", ""],
        ["", "", "0:0", "1:0"],
    ]
    ruling = get_drawing("tree-4").rule(cells, keep=False)
    assert not ruling.is_right and ruling.place[1] == 1


@pytest.mark.parametrize(
    ("name", "place", "same", "other"),
    [
        ("column-row", (0, 0), "0-5", "0-4"),
        ("column-row", (1, 1), "3,4,5", "3,5"),
        ("sequence", (0, 1), "0..7", "0-3"),
        ("heads", (0, 0), "0 1", "1 2"),
        ("mesh-2x2x2", (1, 2), "1", "01-2"),
        ("after-all-reduce", (3, 1), "d1+c1 + a1+b1", "a1+b1+c1+d2"),
        ("after-all-reduce", (3, 1), "dcba1", "abc1"),
        ("zero-2", (0, 0), "X", "y"),
    ],
)
def test_a_cell_that_means_the_same_is_right(name, place, same, other):
    drawing = get_drawing(name)
    cells = [list(each) for each in drawing.answer]
    for text, is_right in ((same, True), (other, False)):
        cells[place[0]][place[1]] = text
        assert drawing.rule(cells, keep=False).is_right is is_right, text


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_task_that_was_printed_into_a_file_and_filled_in_is_read(name):
    drawing = DRAWINGS[name]
    text = f"{drawing.prompt}\n\n{drawing.text_of(drawing.answer)}\n"
    assert drawing.rule(read_cells(text), keep=False).is_right


def after_collectives(world):
    """By collective: the result on this rank, each number with its origin in its digits."""
    rank, n = world.rank, world.size
    pieces = torch.tensor([10.0**rank * (piece + 1) for piece in range(n)])
    each = pieces[:1].clone()
    return {
        "all_reduce": world.all_reduce(pieces.clone()),
        "reduce_scatter": collectives.ring_reduce_scatter(pieces, world),
        "all_gather": collectives.ring_all_gather(each, n, group=world),
        "all_to_all": collectives.pairwise_all_to_all(pieces, world),
        "broadcast": world.broadcast(pieces, 0),
    }


def named(number):
    """`abcd2` for 3333, `c0` for 100."""
    digits = f"{round(number):04}"[::-1]
    letters = "".join(letter for letter, digit in zip("abcd", digits) if digit != "0")
    return f"{letters}{int(max(digits)) - 1}"


def test_what_ranks_hold_is_what_the_collectives_return():
    for rank, results in enumerate(run(after_collectives, 4).values):
        for name, result in results.items():
            found = [named(each) for each in result.tolist()]
            assert [each for each in AFTER[name][0](rank) if each] == found, (name, rank)


def test_names_and_grids_that_are_wrong_are_refused():
    with pytest.raises(UnknownDrawing, match="ring-4"):
        get_drawing("ring")
    with pytest.raises(ValueError, match="4 rows of 6 cells; this has 1 rows, of 2 cells"):
        get_drawing("ring-4").rule([["1:0", ""]])
    assert get_drawing("Ring 4").name == "ring-4"


def test_a_pattern_goes_on_down_and_to_the_right():
    cells = get_drawing("ring-8").empty
    cells[0][0], cells[1][0] = "1:0", "2:1"
    cells[0][1], cells[1][1] = "1:7", "2:0"
    drawing = get_drawing("ring-8")
    while (more := continued(cells)) != cells:
        cells = more
    assert drawing.rule(cells, keep=False).is_right


def test_a_page_marks_the_wrong_cell_and_shows_an_answer():
    box = draw("ring-3")
    press(box._widget, "Check")
    assert box.grid.wrong == [0, 0] and "rank 0, step 1" in words(box._widget)
    assert [each.detail["outcome"] for each in progress.events("ring-3", "drawing")] == ["wrong"]
    press(box._widget, "Show an answer")
    press(box._widget, "Check")
    assert box.grid.wrong == [] and "Right." in words(box._widget)
    assert len(progress.events("ring-3", "drawing")) == 1, "an answer that was shown is no pass"
    assert "ring-4" in repr(draw())


def test_a_button_waits_for_a_field_whose_text_comes_after_it(monkeypatch):
    monkeypatch.setattr(controls, "_TEXT_FOLLOWS_S", 0)

    async def pressed():
        box = draw("ring-3")
        press(box._widget, "Check")
        box.grid._handle_custom_msg({"cell": [0, 0], "text": "1:9"}, [])
        await asyncio.sleep(0.01)
        return words(box._widget)

    assert "there is no chunk 9" in asyncio.run(pressed())


def test_a_terminal_checks_a_file(tmp_path, monkeypatch, capsys):
    drawing, file = get_drawing("server-4"), tmp_path / "mine.txt"
    rows = [" | ".join(cell or "-" for cell in row) for row in drawing.answer]
    for text, status, said in (
        ("\n".join(rows), 0, "Right."),
        ("\n".join([*rows[:-1], "- | -"]), 1, "rank 4, step 1"),
        ("1:0", 2, "5 rows of 2 cells"),
    ):
        file.write_text(text)
        monkeypatch.setattr(sys, "argv", ["labkit", "draw", "server-4", str(file)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out = capsys.readouterr()
        assert end.value.code == status and said in " ".join((out.out + out.err).split())
    assert read_cells("# mine\n1:0 -\n") == [["1:0", "-"]]
