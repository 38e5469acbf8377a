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
from labkit.launch import launch

pytestmark = [
    pytest.mark.clock,
    pytest.mark.skipif(sys.platform != "linux", reason="/proc says who is stopped"),
]

# Below the six seconds for which an answer is waited for elsewhere, and above what ending takes.
AT_ONCE_S = 4
STOPPED = r"rank 1 is stopped \(SIGSTOP, or a debugger\); `kill -CONT (\d+)` lets it go on"


@pytest.fixture(scope="module", autouse=True)
def ranks_start_at_once():
    """The first run of a process starts a server for them, which takes seconds of a timeout."""
    run(lambda world: world.barrier(), 2, timeout=120, device="cpu")


def ended(program, world_size=2, *args, timeout=2, **how):
    """The error of a run, and the seconds that it took beyond its timeout."""
    began_s = time.monotonic()
    with pytest.raises(RunTimeout) as caught:
        launch(program, world_size, [args], timeout=timeout, device="cpu", **how)
    return caught.value, time.monotonic() - began_s - timeout


@pytest.fixture(scope="module")
def ends(ranks_start_at_once, tmp_path_factory):
    """By program, what `ended` says. They run side by side: most of the time they wait."""
    with ThreadPoolExecutor() as pool:
        begun = {
            stops_in_a_receive: pool.submit(ended, stops_in_a_receive),
            returns_or_stops: pool.submit(ended, returns_or_stops),
            stop_all_but_one: pool.submit(ended, stop_all_but_one, 3),
            sleeps_in_the_kernel: pool.submit(
                ended, sleeps_in_the_kernel, 2, str(tmp_path_factory.mktemp("fifo"))
            ),
        }
    return {program: future.result() for program, future in begun.items()}


def one_line(capsys):
    """What was printed, without the ends of lines, which go by the width of a page."""
    return " ".join(capsys.readouterr().out.splitlines())


def stops_before_a_barrier(world):
    if world.rank:
        print("process", os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


def test_a_stopped_rank_is_told_and_named_with_its_cure(capsys):
    error, late_s = ended(stops_before_a_barrier, stall=0.5)
    line = stops_before_a_barrier.__code__.co_firstlineno + 4
    said = error.verdict.text
    assert said.startswith(f"rank 0 waits in barrier #1 (test_stopped_ranks.py, line {line}), and")
    assert error.verdict.fault is Fault.STOPPED and error.verdict.ranks == (1,)
    told = re.search(rf"\[labkit\] rank 0 waits .*{STOPPED}\. The timeout", one_line(capsys))
    row = re.search(rf"\n  {STOPPED.replace('1 is', '1  is')}\n", str(error))
    pids = {re.search(STOPPED, said)[1], told[1], row[1], error.logs[1].split()[1]}
    assert len(pids) == 1
    assert "Stack of rank 0" in str(error) and "Stack of rank 1" not in str(error)
    assert late_s < AT_ONCE_S


def stops_in_a_receive(world):
    world.barrier()
    if world.rank == 1:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
        world.recv(torch.empty(1), 0)
    time.sleep(60)


def test_a_rank_that_is_stopped_in_an_operation_is_said_to_be_in_it(ends):
    error, _ = ends[stops_in_a_receive]
    where = (
        r"is stopped \(SIGSTOP, or a debugger\) in recv #1 from rank 0; `kill -CONT \d+` lets it"
    )
    assert re.search(
        rf"  rank 1  {where} go on  test_stopped_ranks.py, line \d+  float32", str(error)
    )
    assert error.verdict.fault is Fault.STOPPED


def returns_or_stops(world):
    world.barrier()
    if world.rank != 1:
        return
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_stopped_rank_for_which_nobody_waits_does_not_compute(ends):
    error, late_s = ends[returns_or_stops]
    where = re.sub(r"SIGSTOP.*", "", error.positions[1])
    assert where == "is stopped ("
    assert "after barrier #1 (test_stopped_ranks.py, line" in error.positions[1]
    assert re.fullmatch(STOPPED, error.verdict.text)
    assert late_s < AT_ONCE_S


def stop_all_but_one(world):
    if world.rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()


def test_several_stopped_ranks_are_named_together(ends):
    error, late_s = ends[stop_all_but_one]
    cure = r"ranks 1 and 2 are stopped \(SIGSTOP, or a debugger\); `kill -CONT \d+ \d+` lets them"
    assert re.search(cure, error.verdict.text)
    assert late_s < AT_ONCE_S


def sleeps_in_the_kernel(world, folder):
    """The parent of a vfork sleeps until its child has begun another program, and keeps the GIL."""
    world.barrier()
    if world.rank:
        path = os.path.join(folder, "nobody_writes")
        os.mkfifo(path)
        opening = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]
        os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=opening)
    world.barrier()


def test_uninterruptible_sleep_is_no_computing(ends):
    error, late_s = ends[sleeps_in_the_kernel]
    assert "for rank 1, which is in uninterruptible sleep (a disk, " in error.verdict.text
    assert error.positions[1].startswith("is in uninterruptible sleep (")
    assert late_s < AT_ONCE_S


def stops_for_a_while(world):
    if world.rank:
        if os.fork() == 0:
            time.sleep(1)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    return world.all_reduce(torch.ones(1)).item()


def test_a_rank_that_is_let_go_on_ends_the_run_well(capsys):
    assert run(stops_for_a_while, 2, stall=0.3, timeout=60, device="cpu").values == [2, 2]
    assert re.search(STOPPED, one_line(capsys))


def test_a_cell_with_a_stopped_rank_ends_near_its_time():
    with Session(2, echo=False, device="cpu") as session:
        began_s = time.monotonic()
        with pytest.raises(RunTimeout, match=STOPPED):
            session.execute(
                "import os, signal\nif rank: os.kill(os.getpid(), signal.SIGSTOP)\nworld.barrier()",
                timeout=1,
            )
        assert time.monotonic() - began_s < 1 + AT_ONCE_S


def test_no_operation_gives_up_before_the_driver_does():
    """Not while the driver asks the ranks either, whatever patience that takes."""

    def longest_wait_s(world):
        return world._timeout.total_seconds()

    assert run(longest_wait_s, 1, timeout=30, device="cpu").values[0] > 3600
