"""Requests for runs and sessions are checked before anything is started for them."""

import re
import tracemalloc

import pytest

import labkit
from labkit.launch.request import checked_ranks

ABSURD = 10**8
MEBIBYTE = 2**20


@pytest.mark.parametrize("ranks", [None, [0, ABSURD - 1], range(ABSURD, 2 * ABSURD)])
def test_ranks_are_looked_up_without_a_list_of_all_that_were_asked_for(ranks):
    tracemalloc.start()
    try:
        on = checked_ranks(ranks, ABSURD)
    except ValueError as error:
        assert f"this session has ranks 0 to {ABSURD - 1}" in str(error)
    else:
        assert (on[0], on[-1]) == (0, ABSURD - 1)
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < MEBIBYTE


@pytest.mark.parametrize(("world_size", "error"), [(2.5, TypeError), (0, ValueError)])
def test_a_session_on_what_is_no_number_of_ranks_is_refused(world_size, error):
    with pytest.raises(error, match="world_size="):
        labkit.Session(world_size)


@pytest.mark.parametrize("engine", [None, "slurm"])
def test_an_engine_that_is_none_is_refused(engine):
    with pytest.raises(ValueError, match="engine=.*'local'"):
        labkit.run(print, 2, engine=engine)


@pytest.fixture(scope="module")
def session():
    with labkit.Session(1, echo=False) as session:
        session.execute("x = 5")
        yield session


@pytest.mark.parametrize("source", [None, b"1"])
def test_a_cell_that_is_no_text_is_refused(session, source):
    with pytest.raises(TypeError, match="source="):
        session.execute(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = '\ud800'", "surrogates"),
        ("x = '\0'", "null"),
        ("+".join(["1"] * 50_000), "nested"),
    ],
)
def test_a_cell_that_python_cannot_take_is_a_syntax_error_in_a_few_words(session, source, reason):
    with pytest.raises(SyntaxError, match=reason) as caught:
        session.execute(source)
    assert len(str(caught.value)) < 300
    assert session.pull("x") == [5]


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        (3, TypeError, "name=3"),
        ("a b", ValueError, "'a b'"),
        ("for", ValueError, "'for_'"),
    ],
)
def test_a_name_that_no_variable_has_is_neither_pushed_nor_pulled(session, name, kind, reason):
    for carry in (lambda: session.push(name, 1), lambda: session.pull(name)):
        with pytest.raises(kind, match=re.escape(reason)):
            carry()
