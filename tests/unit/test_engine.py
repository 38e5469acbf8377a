"""Processes for ranks: of one that cannot be started, nothing is left."""

from types import SimpleNamespace

import pytest

from labkit.launch import rank_process


@pytest.fixture
def pipe_ends(monkeypatch):
    """Every end of a pipe that is made."""
    made, pipe = [], rank_process._CONTEXT.Pipe

    def recorded(*args, **kwargs):
        ends = pipe(*args, **kwargs)
        made.extend(ends)
        return ends

    monkeypatch.setattr(rank_process._CONTEXT, "Pipe", recorded)
    return made


def fails():
    raise OSError("no process can be made")


def test_no_pipe_stays_open_where_the_fork_server_cannot_be_started(pipe_ends, monkeypatch):
    monkeypatch.setattr(rank_process, "warm_up", fails)
    with pytest.raises(OSError, match="no process can be made"):
        rank_process.start_rank(SimpleNamespace(rank=0))
    assert all(end.closed for end in pipe_ends)


def test_no_pipe_stays_open_where_a_process_cannot_be_started(pipe_ends, monkeypatch):
    process = SimpleNamespace(start=fails)
    monkeypatch.setattr(rank_process._CONTEXT, "Process", lambda **how: process)
    with pytest.raises(OSError, match="no process can be made"):
        rank_process.start_rank(SimpleNamespace(rank=0))
    assert len(pipe_ends) == 6 and all(end.closed for end in pipe_ends)
