"""What two ranks have entered for one place of a process group, and how a difference is said."""

import pytest

from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.agreement.shared_rows import ROWS_PER_FILE
from labkit.comm.calls.by_place import Meant, Places

SUM, MAX = Meant("all_reduce", "sum"), Meant("all_reduce", "max")


@pytest.fixture
def two(tmp_path):
    """Members 0 and 1 of a group of ranks 4 and 7."""
    return [Places(tmp_path, "torch.distributed/1", (4, 7), member) for member in (0, 1)]


def said(places, *entry):
    with pytest.raises(Disagreement) as caught:
        places.enter(*entry)
    return str(caught.value).partition(". ")[0]


def test_a_place_that_one_rank_alone_has_entered_says_nothing(two):
    two[0].enter(1, SUM, "/a/train.py", 3)
    two[1].enter(2, MAX, "/a/train.py", 3)


def test_ranks_are_called_by_their_numbers_in_the_run(two):
    two[0].enter(1, SUM, "/a/train.py", 3)
    text = said(two[1], 1, MAX, "/a/train.py", 9)
    assert text == (
        "in all_reduce, collective #1 of torch.distributed/1, "
        "rank 7 reduces by max, and rank 4 by sum (line 3)"
    )


def test_a_root_is_one_too(two):
    two[0].enter(5, Meant("broadcast", root=0), "/a/train.py", 3)
    text = said(two[1], 5, Meant("broadcast", root=1), "/a/train.py", 3)
    assert text.endswith("rank 7 names rank 7 as the root, and rank 4 rank 4 (line 3)")


def test_another_collective_is_named(two):
    two[0].enter(1, SUM, "/a/train.py", 3)
    text = said(two[1], 1, Meant("broadcast", root=0), "/a/train.py", 4)
    assert text.startswith("as collective #1 of torch.distributed/1, rank 7 calls broadcast, and")


@pytest.mark.parametrize(
    ("file", "called"),
    [
        ("/b/train.py", "train.py"),  # of the same name, and another one
        ("<cell 12>", "cell 12"),
        ("/b/a_name_that_is_longer_than_there_is_room.py", "_longer_than_there_is_room.py"[-24:]),
    ],
)
def test_a_line_of_another_file_is_told_with_it(two, file, called):
    two[0].enter(1, SUM, file, 3)
    assert said(two[1], 1, MAX, "/a/train.py", 9).endswith(f"by sum ({called}, line 3)")


def test_rows_go_on_in_another_file(two):
    for place in (ROWS_PER_FILE - 1, ROWS_PER_FILE, ROWS_PER_FILE + 1):
        two[0].enter(place, SUM, "/a/train.py", 3)
        two[1].enter(place, SUM, "/a/train.py", 3)
    two[0].enter(2 * ROWS_PER_FILE, SUM, "/a/train.py", 3)
    assert "collective #8192" in said(two[1], 2 * ROWS_PER_FILE, MAX, "/a/train.py", 3)
