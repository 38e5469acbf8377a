"""Calls past the Groups: whose an operation is, and what is left when process groups end."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.comm import callbacks, flight_recorder, member
from labkit.comm.agreement.disagreement import Disagreement
from labkit.comm.calls import process_group_methods
from labkit.comm.calls.compared import CallsOfAProcess


class Disagreeing:
    """Calls that differ from the others' in the end."""

    def __init__(self, why):
        self._agreement, self._why = self, why

    def leave(self):
        raise Disagreement(self._why)


def test_of_destroyed_groups_all_are_forgotten_and_the_first_difference_is_told():
    calls = CallsOfAProcess(
        SimpleNamespace(tables=Path(), journals=Path(), ranks=[], agreements=[]), 0
    )
    groups = {name: (object(), Disagreeing(name)) for name in ("first", "second")}
    calls._by_group = dict(groups)
    with pytest.raises(Disagreement, match="first"):
        calls.forget(None)
    assert not calls._by_group


def is_of_a_group(*modules):
    frames = [{"filename": module.__file__} for module in modules]
    return flight_recorder._is_of_a_group({"frames": [*frames, {"filename": "train.py"}]})


def test_only_what_a_group_hands_over_is_a_groups():
    assert is_of_a_group(process_group_methods, member)
    assert is_of_a_group(process_group_methods, member, callbacks)
    assert not is_of_a_group(process_group_methods)
    assert not is_of_a_group(process_group_methods, callbacks), "in a future's callback"
