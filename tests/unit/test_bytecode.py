"""What the doctor reads of a program's bytecode is the same in every version of Python."""

import dis

import pytest

from labkit.comm.agreement.loops import _parts as parts
from labkit.comm.agreement.loops import instructions


def instruction(opname, argval):
    """As of Python 3.13, whatever this one is."""
    (first, *_) = dis.get_instructions((lambda: None).__code__)
    return first._replace(opname=opname, argval=argval)


@pytest.mark.parametrize(
    ("opname", "found"),
    [
        ("STORE_FAST_LOAD_FAST", [("STORE_FAST", "a"), ("LOAD_FAST", "b")]),
        ("LOAD_FAST_LOAD_FAST", [("LOAD_FAST", "a"), ("LOAD_FAST", "b")]),
        ("STORE_FAST_STORE_FAST", [("STORE_FAST", "a"), ("STORE_FAST", "b")]),
        (
            "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
            [("LOAD_FAST_BORROW", "a"), ("LOAD_FAST_BORROW", "b")],
        ),
    ],
)
def test_two_variables_in_one_instruction_are_told_apart(opname, found):
    both = parts(instruction(opname, ("a", "b")))
    assert [(each.opname, each.argval) for each in both] == found


@pytest.mark.parametrize("opname", ["LOAD_CONST", "LOAD_FAST", "LOAD_FAST_CHECK"])
def test_others_stay_as_they_are(opname):
    one = instruction(opname, ("a", "b"))
    assert parts(one) == [one]


def test_each_instruction_of_a_function_has_one_variable():
    def moves(free, taken):
        one = free.pop()
        taken.append(one)
        return one, taken

    variables = [each.argval for each in instructions(moves.__code__) if "FAST" in each.opname]
    assert all(isinstance(name, str) for name in variables)
