"""A rank whose process does not run: it is named with that, and nobody waits for its answer."""

import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from labkit import RunTimeout, Session, run
from labkit.doctor.verdict import Fault
from labkit.launch import launch, listen, notes
from tests.processes import wait_until_still

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc says who is stopped")

# Where an answer is waited for, it is waited for this long.
PATIENCE_S = 120
STOPPED = r"rank 1 is stopped \(SIGSTOP, or a debugger\); `kill -CONT (\d+)` lets it go on"


@pytest.fixture(scope="module", autouse=True)
def the_driver_is_patient():
    """The driver would wait for the answer of a stopped rank longer than a test does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listen, "PATIENCE_S", PATIENCE_S)
        yield


@pytest.fixture(scope="module")
def ended(timeout_when_still):
    """The error of a run whose timeout passes once all ranks are stopped or wait.

    It comes long before the driver's patience with ranks that do not answer is over.
    """

    def ended(program, world_size=2, *args, may_pass=lambda: True, **how):
        with timeout_when_still(may_pass) as now, pytest.raises(RunTimeout) as caught:
            launch(program, world_size, [args], timeout=600, device="cpu", **how)
        assert time.monotonic() - now.passed_at_s < PATIENCE_S, "somebody waited for an answer"
        return caught.value

    return ended


@pytest.fixture(scope="module")
def ends(ended, tmp_path_factory):
    """By program, what `ended` says. They run side by side: most of the time they wait."""
    stopped = tmp_path_factory.mktemp("is") / "stopped"
    with ThreadPoolExecutor() as pool:
        started = {
            stops_in_a_receive: pool.submit(
                ended, stops_in_a_receive, 2, stopped, may_pass=stopped.exists
            ),
            returns_or_stops: pool.submit(ended, returns_or_stops),
            stop_all_but_one: pool.submit(ended, stop_all_but_one, 3),
            sleeps_in_the_kernel: pool.submit(
                ended, sleeps_in_the_kernel, 2, str(tmp_path_factory.mktemp("fifo"))
            ),
        }
    return {program: future.result() for program, future in started.items()}


def one_line(capsys):
    """Return the printed text without line ends, which depend on the page's width."""
    return " ".join(capsys.readouterr().out.splitlines())


def stops_before_a_barrier(world):
    if world.rank:
        print("process", os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


def test_a_stopped_rank_is_reported_and_named_with_its_cure(ended, capsys, monkeypatch):
    tell, has_reported = notes.print_note, threading.Event()
    monkeypatch.setattr(notes, "print_note", lambda text: (tell(text), has_reported.set()))
    error = ended(stops_before_a_barrier, may_pass=has_reported.is_set, stall=0.5)
    line = stops_before_a_barrier.__code__.co_firstlineno + 4
    said = error.verdict.text
    assert said.startswith(f"rank 0 waits in barrier #1 (test_stopped_ranks.py, line {line}), and")
    assert error.verdict.fault is Fault.STOPPED and error.verdict.ranks == (1,)
    reported = re.search(rf"\[labkit\] rank 0 waits .*{STOPPED}\. The timeout", one_line(capsys))
    row = re.search(rf"\n  {STOPPED.replace('1 is', '1  is')}\n", str(error))
    pids = {re.search(STOPPED, said)[1], reported[1], row[1], error.logs[1].split()[1]}
    assert len(pids) == 1
    assert "Stack of rank 0" in str(error) and "Stack of rank 1" not in str(error)


def stops_in_a_receive(world, stopped):
    _, pid = world.all_gather(torch.tensor([os.getpid()])).tolist()
    if world.rank == 1:
        world.recv(torch.empty(1), 0)
    wait_until_still([pid])
    os.kill(pid, signal.SIGSTOP)
    stopped.touch()  # before, rank 0 sleeps between its looks, and the timeout must not pass
    time.sleep(600)


def test_a_rank_that_is_stopped_in_an_operation_is_said_to_be_in_it(ends):
    error = ends[stops_in_a_receive]
    where = (
        r"is stopped \(SIGSTOP, or a debugger\) in recv #1 from rank 0; `kill -CONT \d+` lets it"
    )
    assert re.search(
        rf"  rank 1  {where} go on  test_stopped_ranks.py, line \d+ +float32", str(error)
    )
    assert error.verdict.fault is Fault.STOPPED


def returns_or_stops(world):
    world.barrier()
    if world.rank != 1:
        return
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_stopped_rank_for_which_nobody_waits_does_not_compute(ends):
    error = ends[returns_or_stops]
    where = re.sub(r"SIGSTOP.*", "", error.positions[1])
    assert where == "is stopped ("
    assert "after barrier #1 (test_stopped_ranks.py, line" in error.positions[1]
    assert re.fullmatch(STOPPED, error.verdict.text)


def stop_all_but_one(world):
    if world.rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


def test_several_stopped_ranks_are_named_together(ends):
    error = ends[stop_all_but_one]
    cure = r"ranks 1 and 2 are stopped \(SIGSTOP, or a debugger\); `kill -CONT \d+ \d+` lets them"
    assert re.search(cure, error.verdict.text)


def sleeps_in_the_kernel(world, folder):
    """The parent of a vfork sleeps until its child has started a program, and keeps the GIL."""
    world.barrier()
    if world.rank:
        path = os.path.join(folder, "nobody_writes")
        os.mkfifo(path)
        opening = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]
        os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=opening)
    world.barrier()


def test_uninterruptible_sleep_is_no_computing(ends):
    error = ends[sleeps_in_the_kernel]
    assert "for rank 1, which is in uninterruptible sleep (a disk, " in error.verdict.text
    assert error.positions[1].startswith("is in uninterruptible sleep (")


def stops_for_a_while(world, reported):
    if world.rank:
        if os.fork() == 0:
            while not reported.exists():
                time.sleep(0.01)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    return world.all_reduce(torch.ones(1)).item()


def test_a_rank_that_is_let_go_on_ends_the_run_well(capsys, monkeypatch, tmp_path):
    tell, reported = notes.print_note, tmp_path / "told"
    monkeypatch.setattr(notes, "print_note", lambda text: (tell(text), reported.touch()))
    values = run(stops_for_a_while, 2, (reported,), stall=0.3, timeout=600, device="cpu").values
    assert values == [2, 2]
    assert re.search(STOPPED, one_line(capsys))


def test_a_cell_with_a_stopped_rank_ends_when_its_time_is_over(timeout_when_still):
    cell = "import os, signal\nif rank: os.kill(os.getpid(), signal.SIGSTOP)\nworld.barrier()"
    with Session(2, echo=False, device="cpu") as session:
        with timeout_when_still() as now, pytest.raises(RunTimeout, match=STOPPED):
            session.execute(cell, timeout=600)
        assert time.monotonic() - now.passed_at_s < PATIENCE_S


def test_no_operation_gives_up_before_the_driver_does():
    """Not while the driver asks the ranks either, whatever patience that takes."""

    def longest_wait_s(world):
        return world._timeout.total_seconds()

    assert run(longest_wait_s, 1, timeout=600, device="cpu").values[0] > 3600
