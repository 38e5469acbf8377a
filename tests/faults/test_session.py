"""A session on ranks: variables stay, and every way to fail says what became of them."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch

from labkit import Deadlock, Mismatch, RankError, RunTimeout, Session, viz
from labkit.comm import journal
from labkit.comm.journal import parse
from labkit.launch import warm_up
from labkit.launch.rank_process import RankProcess
from labkit.launch.session import ranks
from labkit.launch.session.in_rank import PREDEFINED
from tests.forked_programs import script
from tests.processes import are_gone_within

GOES_ON = "the session goes on, with its variables"
HAS_ENDED = "the session has ended: the next cell starts 3 new ranks, without the variables"


@pytest.fixture(autouse=True)
def ranks_that_compute_have_a_minute_to_come_back(monkeypatch):
    """After a press or an error: a quarter of a second is too little on a busy machine."""
    monkeypatch.setattr(ranks, "_INTERRUPT_WAITS_S", (0.1, 60))


def processes(session):
    return [int(line.split()[3]) for line in session.status().splitlines() if " process " in line]


@pytest.fixture
def session(tmp_path, monkeypatch):
    warm_up()  # before: the fork server's own folder is no session's
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with Session(3) as session:
        session.execute("kept = rank * 10")
        pids = processes(session)
        yield session
    assert are_gone_within(pids, 60)
    assert list(folder.iterdir()) == []


def goes_on(session):
    return session.execute("kept").values == [0, 10, 20]


def restarts(session, capsys):
    """The next cell works, on new ranks, and this is said."""
    capsys.readouterr()
    values = session.execute("'kept' in globals(), world.all_reduce(torch.ones(1)).item()").values
    said = "3 new ranks: the variables of earlier cells are gone." in capsys.readouterr().out
    return said and values == [(False, 3.0)] * 3


# --- cells that end well ---------------------------------------------------------------------


def test_variables_stay_and_functions_of_one_cell_are_called_in_the_next(session):
    session.execute("def total(x):\n    return world.all_reduce(x)\n\nx = torch.full((2,), 1.0)")
    values = session.execute("x += rank\ntotal(x)").values
    assert all(torch.equal(value, torch.full((2,), 6.0)) for value in values)
    assert goes_on(session)


def test_every_rank_begins_with_the_same_names(session):
    assert (
        session.execute("world.rank == rank, world.size == world_size").values == [(True, True)] * 3
    )
    assert session.execute("torch.__name__, labkit.__name__").values[0] == ("torch", "labkit")
    assert set(PREDEFINED) <= set(session.execute("list(globals())").values[0])


def test_the_value_of_the_last_line_prints_once_for_ranks_that_agree(session):
    assert repr(session.execute("min(rank, 1)")) == "rank 0: 0\nranks 1 and 2: 1"
    assert repr(session.execute("torch.eye(2)")) == (
        "ranks 0, 1 and 2: tensor([[1., 0.],\n" + 26 * " " + "[0., 1.]])"
    )
    assert "without a value" in repr(session.execute("x = 3"))


def test_a_value_that_cannot_travel_prints_and_stays_on_its_rank(session):
    run = session.execute("world")
    assert "rank 1: Group(world, rank 1 of 3" in repr(run)
    assert repr(run.values[1]).startswith("<stayed on its rank: Group(world, rank 1 of 3")


def test_what_ranks_print_is_named_by_rank_and_kept_by_cell(session, capsys):
    session.execute("print('earlier')")
    capsys.readouterr()
    run = session.execute("print('hello')\nimport os\nos.write(2, b'no newline')")
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(
        f"[rank {rank}] {text}" for rank in range(3) for text in ("hello", "no newline")
    )
    assert run.logs == ["hello\nno newline"] * 3


def test_a_cells_run_has_the_traffic_of_that_cell_only(session):
    session.execute("x = torch.ones(300)\nworld.all_reduce(x)")
    with pytest.raises(RankError):
        session.execute("world.all_reduce(x)\n1 / 0")
    run = session.execute("with world.region('two'):\n    world.all_reduce(x), world.barrier()")
    (operation, barrier) = run.timeline[0].operations
    assert (operation.name, barrier.name) == ("all_reduce #3", "barrier #4")
    assert run.traffic[0].by_operation["all_reduce"].count == 1
    assert [region.name for region in run.timeline[0].regions] == ["two"]
    assert 0 <= operation.posted_s < operation.done_s <= run.timeline[0].end_s
    assert viz.timeline(run).png().startswith(b"\x89PNG")


def test_a_cell_that_lasts_reads_nothing_again_of_earlier_cells(session, monkeypatch, tmp_path):
    num_read = enough = 0

    def counted(*record):
        nonlocal num_read
        num_read += 1
        if num_read == enough:
            (tmp_path / f"{enough} read").touch()
        return parse(*record)

    def lasts(until):
        nonlocal num_read, enough
        num_read, enough = 0, until
        session.execute(
            "import os, time\nfor _ in range(4):\n    world.barrier()\n"
            f"while not os.path.exists({str(tmp_path / f'{until} read')!r}):\n    time.sleep(0.05)"
        )

    monkeypatch.setattr(journal, "parse", counted)
    session.execute("for _ in range(500):\n    with world.region('step'):\n        pass")
    lasts(until=3 * 500)  # else nobody has looked, and this test proves nothing
    lasts(until=3 * 4)
    assert num_read < 3 * 500


def test_a_cell_on_some_ranks_leaves_the_others_alone(session):
    run = session.execute("kept += 1\nkept", ranks=[2, 0])
    assert run.values == [1, None, 21]
    assert viz.timeline(run).png().startswith(b"\x89PNG")
    assert session.execute("kept").values == [1, 10, 21]


def test_what_one_cell_posts_another_may_wait_for(session):
    session.execute("pending = world.isend(torch.ones(1), dst=1)", ranks=[0])
    assert session.execute("world.recv(torch.empty(1), src=0).item()", ranks=[1]).values[1] == 1.0
    session.execute("pending.wait()", ranks=[0])
    assert goes_on(session)


def test_values_are_carried_to_the_ranks_and_back(session):
    session.push("scale", lambda x: 2 * x)
    session.execute("kept = scale(kept)")
    assert session.pull("kept") == [0, 20, 40]
    with pytest.raises(NameError, match="no variable 'loss' on ranks 0, 1 and 2"):
        session.pull("loss")
    with pytest.raises(TypeError, match="world of rank 0 cannot travel"):
        session.pull("world")
    with pytest.raises(TypeError, match="lock cannot travel"):
        session.push("lock", threading.Lock())


def test_status_names_processes_and_variables(session):
    session.execute("only_here = 1", ranks=[1])
    heading, *lines = session.status().splitlines()
    assert heading == "3 ranks on cpu, 2 cells so far."
    assert lines[0].endswith("variables: kept")
    assert lines[1].endswith("variables: kept, only_here")


def test_restart_forgets_the_variables(session):
    before = processes(session)
    session.restart()
    assert are_gone_within(before, 60)
    assert session.execute("'kept' in globals()").values == [False] * 3


def test_a_closed_session_says_so(session):
    session.close()
    with pytest.raises(RuntimeError, match=r"closed; make another: Session\(3\)"):
        session.execute("rank")


def test_a_session_prints_in_short_what_it_is(session):
    assert repr(session) == "<a session: 3 ranks on cpu, 1 cell so far; see status()>"
    with pytest.raises(RankError):
        session.execute("import os; os._exit(3)")
    assert repr(session) == "<a session: its ranks have ended; see status()>"
    session.close()
    assert repr(session) == "<a session that is closed>"


# --- two threads -----------------------------------------------------------------------------


@pytest.fixture
def during(session, tmp_path):
    """Call something while a cell runs that another thread has sent; what became of that cell."""

    def during(call):
        started, goes_on = tmp_path / "started", tmp_path / "goes on"
        cell = (
            "import pathlib, time\n"
            f"pathlib.Path({str(started)!r}).touch()\n"
            f"while not pathlib.Path({str(goes_on)!r}).exists():\n"
            "    time.sleep(0.01)\n"
            "kept"
        )
        ended = []

        def execute():
            try:
                ended.append(session.execute(cell, timeout=600).values)
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=execute)
        thread.start()
        while not started.exists():
            time.sleep(0.01)
        try:
            call(goes_on)
        finally:
            goes_on.touch()
            thread.join()
        return ended[0]

    return during


def test_what_another_thread_asks_for_during_a_cell_is_refused_and_does_no_harm(session, during):
    def ask(goes_on):
        before = session._num_cells
        for refused in (
            session.restart,
            lambda: session.execute("kept = 5"),
            lambda: session.push("kept", 5),
            lambda: session.pull("kept"),
        ):
            with pytest.raises(RuntimeError, match="at work for another thread; wait until"):
                refused()
        assert "At work now: ask again" in session.status()
        assert session._num_cells == before

    assert during(ask) == [0, 10, 20]
    assert goes_on(session)


def test_close_waits_for_the_cell_of_another_thread(session, during):
    def close(goes_on):
        closing = threading.Thread(target=session.close)
        closing.start()
        time.sleep(0.3)
        assert closing.is_alive()
        goes_on.touch()
        closing.join()

    assert during(close) == [0, 10, 20]
    with pytest.raises(RuntimeError, match="is closed; make another"):
        session.execute("rank")


def test_of_two_threads_on_ranks_that_have_ended_one_starts_new_ones(session, monkeypatch):
    with pytest.raises(RankError):
        session.execute("import os; os._exit(3)")
    started, both_are_there = [], threading.Barrier(2)
    start = session._started

    def counted():
        started.append(1)
        return start()

    monkeypatch.setattr(session, "_started", counted)
    ended = []

    def execute():
        both_are_there.wait()
        try:
            ended.append(session.execute("rank").values)
        except RuntimeError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=execute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1
    assert [0, 1, 2] in ended
    assert all(each == [0, 1, 2] or "at work for another thread" in each for each in ended)


def test_a_handler_of_signals_cannot_close_the_session_under_a_cell(session):
    old = signal.signal(signal.SIGUSR2, lambda number, frame: session.close())
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        with pytest.raises(RuntimeError, match="in the midst of a cell"):
            session.execute("import time; time.sleep(60)", timeout=600)
    finally:
        signal.signal(signal.SIGUSR2, old)
    assert goes_on(session)


# --- failures that leave the variables -------------------------------------------------------


def test_a_syntax_error_is_found_before_anything_is_sent(session):
    with pytest.raises(SyntaxError) as caught:
        session.execute("kept = 5\nkept = = 5")
    assert caught.value.lineno == 2
    assert goes_on(session)


@pytest.mark.parametrize("wrong", [[3], [-1], []])
def test_ranks_that_are_not_there_are_refused(session, wrong):
    with pytest.raises(ValueError, match="this session has ranks 0 to 2"):
        session.execute("kept = 5", ranks=wrong)
    assert goes_on(session)


def test_an_exception_names_rank_cell_and_line_and_leaves_the_variables(session):
    session.execute("world.barrier()")
    with pytest.raises(RankError) as caught:
        session.execute("world.barrier()\nif rank == 2:\n    kept / 0")
    error = caught.value
    assert error.rank == 2
    assert str(error).startswith("rank 2 raised ZeroDivisionError at cell 3, line 3")
    assert "Cell 3, line 3, in <module>\n    kept / 0" in str(error), "the source line is missing"
    assert "labkit/launch" not in str(error)
    assert [len(timeline.operations) for timeline in error.timeline] == [1, 1, 1]
    assert str(error).endswith(GOES_ON + ".")
    assert goes_on(session)


def test_the_mark_below_a_cells_last_line_stands_below_what_it_is_about(session):
    with pytest.raises(RankError) as caught:
        session.execute("x = 1\nz = abs(unheard_of)")
    above, mark = caught.value.traceback.splitlines()[-3:-1]
    assert mark.index("^") == above.index("unheard_of")


def test_a_timeout_in_python_leaves_the_variables(session):
    with pytest.raises(RunTimeout, match=GOES_ON) as caught:
        session.execute("while True:\n    pass", timeout=2)
    assert "Cell 2, line" in caught.value.stacks[0]
    assert goes_on(session)


# --- failures that end the ranks -------------------------------------------------------------


def test_a_rank_that_never_comes_is_named_and_the_next_cell_works(session, capsys):
    session.execute("world.barrier()")
    with pytest.raises(Deadlock) as caught:
        session.execute("if rank != 1:\n    world.all_reduce(torch.ones(1))")
    text = str(caught.value)
    assert "ranks 0 and 2 wait in all_reduce #2 (cell 3, line 2)" in text
    assert "rank 1 returned" in text
    assert text.endswith(HAS_ENDED + ".")
    assert restarts(session, capsys)


def test_a_collective_that_needs_idle_ranks_says_so_before_its_timeout(session, capsys):
    with pytest.raises(Deadlock) as caught:
        session.execute("\nworld.barrier()", ranks=[0, 2], timeout=600)
    assert "ranks 0 and 2 wait in barrier #1 (cell 2, line 2)" in str(caught.value)
    assert "rank 1 is idle (not in this cell)" in str(caught.value)
    assert restarts(session, capsys)


def test_ranks_that_are_left_waiting_for_one_that_raised_are_ended(session, capsys):
    with pytest.raises(RankError, match="rank 1 raised KeyError at cell 2, line 1") as caught:
        session.execute("{}['loss'] if rank == 1 else world.barrier()")
    assert "Ranks 0 and 2 could not be called back" in str(caught.value)
    assert str(caught.value).endswith(HAS_ENDED + ".")
    assert restarts(session, capsys)


def test_a_mismatch_names_both_calls_and_ends_the_ranks(session, capsys):
    with pytest.raises(Mismatch, match="rank 1") as caught:
        session.execute(
            "x = torch.ones(2)\nworld.all_gather(x) if rank == 1 else world.all_reduce(x)"
        )
    assert "all_gather" in str(caught.value)
    assert "cell 2, line 2" in str(caught.value)
    assert str(caught.value).endswith(HAS_ENDED + ".")
    assert restarts(session, capsys)


def test_ranks_that_are_out_of_step_do_not_go_on(session, capsys):
    with pytest.raises(RankError, match="rank 1 raised ValueError") as caught:
        session.execute(
            "if rank == 1: raise ValueError\npending = world.all_reduce(torch.ones(1), wait=False)"
        )
    assert "all_reduce #1, and rank 1 has not" in str(caught.value)
    assert str(caught.value).endswith(HAS_ENDED + ".")
    assert restarts(session, capsys)


def test_a_rank_that_dies_in_a_cell_is_named(session, capsys):
    with pytest.raises(RankError, match="rank 1 died: .*SIGKILL") as caught:
        session.execute(
            "import os\nif rank == 1: os.kill(os.getpid(), 9)\nworld.barrier()\nworld.barrier()"
        )
    assert str(caught.value).endswith(HAS_ENDED + ".")
    assert "have ended" in session.status()
    assert restarts(session, capsys)


@pytest.mark.parametrize("on", [None, [0]])
def test_a_rank_that_dies_between_cells_is_named_and_the_cell_is_not_run(session, capsys, on):
    victim = processes(session)[1]
    os.kill(victim, signal.SIGKILL)
    while not session._ranks.dead:  # the fork server tells the driver
        time.sleep(0.01)
    with pytest.raises(RankError, match="rank 1 died: .*SIGKILL") as caught:
        session.execute("print('ran')", ranks=on)
    assert "This cell was not run" in str(caught.value)
    assert "ran" not in capsys.readouterr().out.split()
    assert restarts(session, capsys)


def test_a_rank_that_had_not_started_the_cell_is_interrupted_a_second_time(session, monkeypatch):
    """Before the cell it drops SIGINT. Here it misses the first one; after both it has time."""
    send, missed = RankProcess.signal, set()

    def misses_the_first(rank, number):
        if rank.rank in missed:
            send(rank, number)
        missed.add(rank.rank)

    monkeypatch.setattr(RankProcess, "signal", misses_the_first)
    with pytest.raises(RunTimeout, match=GOES_ON):
        session.execute("import time; time.sleep(600)", timeout=0.2)
    assert missed == {0, 1, 2} and goes_on(session)


STOPPED = """
import os, signal, threading, time, labkit
from pathlib import Path
from tests.processes import wait_until_still
HERE = __file__
labkit.launch.session.ranks._INTERRUPT_WAITS_S = (0.1, 60)
session = labkit.Session(3)
session.execute("import os, pathlib, time; kept = 1")

def stopped(source):
    pids = [process.process.pid for process in session._ranks.processes]
    started = [Path(f"{HERE}.{pid}") for pid in pids]
    def press():
        while not all(each.exists() for each in started):
            time.sleep(0.01)
        for each in started:
            each.unlink()
        wait_until_still(pids)
        os.kill(os.getpid(), signal.SIGINT)
    try:
        threading.Thread(target=press).start()
        touch = f"pathlib.Path(f'{HERE}.{{os.getpid()}}').touch(); "
        session.execute(touch + source, timeout=600, stall=None)
    except KeyboardInterrupt as stop:
        print("stopped")
        print(stop)

stopped("time.sleep(600)")
print(session.execute("kept").values)
stopped("world.barrier() if rank else (time.sleep(600), world.barrier())")
print(session.execute("rank").values)
"""  # and no close(): the end of the interpreter is the end of the session


def test_stop_is_quick_and_keeps_the_variables_of_ranks_that_are_in_python(tmp_path):
    path, folder = tmp_path / "stopped.py", tmp_path / "tmp"
    path.write_text(STOPPED)
    folder.mkdir()
    in_python, in_cpp = script(path, TMPDIR=str(folder)).output().split("stopped\n")[1:]
    assert GOES_ON in in_python
    assert "[1, 1, 1]" in in_python
    assert "barrier #1 (cell 4, line 1)" in in_cpp
    assert HAS_ENDED in in_cpp
    assert "[0, 1, 2]" in in_cpp
    assert list(folder.glob("labkit-*")) == []


ORPHANED = """
import time, labkit
session = labkit.Session(2)
print(*session.execute("import os; os.getpid()").values, flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("then", "is_killed"),
    [("time.sleep(100)", True), ("1 / 0", False), ("del session; time.sleep(100)", False)],
)
def test_no_rank_outlives_its_driver_or_its_session(tmp_path, then, is_killed):
    path = tmp_path / "orphaned.py"
    path.write_text(ORPHANED.format(then=then))
    driver = script(path)
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert len(pids) == 2
    if is_killed:
        driver.kill()
    assert are_gone_within(pids, 60)
    driver.kill()
    driver.output(10)


def test_many_failing_cells_leave_no_file_open(session):
    def open_files():
        return len(list(Path("/dev/fd").iterdir()))

    def fail():
        for source in ("1 / 0", "import os; os._exit(3)"):
            with pytest.raises(RankError):
                session.execute(source)

    fail()
    before = open_files()
    for _ in range(5):
        fail()
    assert open_files() <= before
