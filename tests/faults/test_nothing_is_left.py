"""After many failures: no process, no open file, no folder, no thread."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from labkit import Deadlock, RankError, RunTimeout, run
from tests.forked_programs import script
from tests.processes import alive, are_gone_within, wait_until_still


def raises(world):
    if world.rank == 1:
        raise ZeroDivisionError
    world.barrier()


def exits(world):
    if world.rank == 1:
        os._exit(3)
    world.barrier()


def is_killed(world):
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world.barrier()


def aborts(world):
    if world.rank == 1:
        os.abort()
    world.barrier()


def leaves_early(world):
    if world.rank == 0:
        world.barrier()


def sleeps(world):
    time.sleep(60)


# (function, its error, the run's timeout)
MIX = [
    (raises, RankError, 30),
    (exits, RankError, 30),
    (is_killed, RankError, 30),
    (aborts, RankError, 30),
    (sleeps, RunTimeout, 0.3),
    (leaves_early, Deadlock, 30),
]


def descendants():
    """Process ids below this process, those of processes that nobody has buried included."""
    ps = subprocess.Popen(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True)
    listing, _ = ps.communicate(timeout=600)
    children = {}
    for line in listing.splitlines():
        pid, parent = map(int, line.split())
        children.setdefault(parent, set()).add(pid)
    found, unseen = set(), [os.getpid()]
    while unseen:
        below = children.get(unseen.pop(), set()) - {ps.pid}
        found |= below
        unseen += below
    return found


def num_open_files(pid="self"):
    """How many files a process has open; None where the system does not tell of others."""
    folder = Path("/dev/fd") if pid == "self" else Path(f"/proc/{pid}/fd")
    return len(os.listdir(folder)) if folder.exists() else None


def what_there_is(folder):
    return {
        "processes": descendants(),
        "open files": num_open_files(),
        "open files of the fork server": num_open_files(forkserver._forkserver._forkserver_pid),
        "folders": sorted(path.name for path in folder.iterdir()),
        "threads": threading.active_count(),
    }


def grown(before, after):
    """Return what there is more of after a run, or what has changed."""
    return {
        name: (before[name], found)
        for name, found in after.items()
        if found != before[name] and not (isinstance(found, int) and found < before[name])
    }


def test_failing_runs_of_every_kind_leave_nothing_behind(tmp_path, monkeypatch):
    run(lambda world: None, 2)  # from here on there is a fork server
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = what_there_is(tmp_path)
    for fn, error, timeout in MIX + MIX:
        with pytest.raises(error):
            run(fn, 2, timeout=timeout)
    deadline_s = time.monotonic() + 60  # the fork server buries its dead in a moment
    # (Of what was open before, something may have been closed since.)
    while (more := grown(before, what_there_is(tmp_path))) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert more == {}


DRIVER = """
import os, signal, threading, time, torch, labkit
os.setpgrp()  # Stop goes to a whole process group, as Jupyter sends it
labkit.launch.warm_up()
try:
    threading.Timer(0.2, os.killpg, (0, signal.SIGINT)).start()
    labkit.run(lambda world: time.sleep(600), 2, timeout=600)
except KeyboardInterrupt:
    print(labkit.run(lambda world: world.rank, 2, timeout=600).values, flush=True)

def blocked(world):
    print("pid", os.getpid(), flush=True)
    if world.rank:
        world.all_reduce(torch.ones(1))
    world.recv(torch.empty(1), src=(world.rank + 1) % world.size)
labkit.launch.listen.StallWatch._proof = lambda watch: None  # to wait in vain
labkit.launch.launch(blocked, 3, [()], timeout=600)
"""


def test_stop_spoils_no_later_run_and_a_killed_driver_leaves_no_rank(tmp_path, monkeypatch):
    """Stop comes while the fork server imports. It is the driver's own: the driver is no fork."""
    script, folder = tmp_path / "driver.py", tmp_path / "tmp"
    script.write_text(DRIVER)
    folder.mkdir()
    driver = subprocess.Popen(
        [sys.executable, script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )
    assert driver.stdout.readline() == "[0, 1]\n"
    ranks = [int(driver.stdout.readline().split()[-1]) for _ in range(3)]
    wait_until_still(ranks)  # in the deadlock
    assert len(alive(ranks)) == 3
    driver.kill()
    driver.wait(60)
    driver.stdout.close()
    assert are_gone_within(ranks, 60)
    (left,) = folder.glob("labkit-run-*")  # nobody was there to remove it

    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    run(lambda world: None, 1)
    assert not left.exists()
    assert list(folder.glob("labkit-run-*")) == []


STOPPED = """
import os, signal, threading, time, torch
from pathlib import Path
from labkit import Link, Topology, run
HERE = __file__

def began(world):
    Path(f"{{HERE}}.{{world.rank}}").touch()

def computes(world):
    began(world)
    while world.rank == 0:
        pass

def computes_in_c(world):
    began(world)
    world.rank or sum(range(10**12))

def hangs(world):
    began(world)
    if world.rank == 0:
        time.sleep(600)
    world.all_reduce(torch.ones(1))

def sends_slowly(world):
    began(world)
    if world.rank == 0:
        world.send(torch.ones(1), 1)
    else:
        world.recv(torch.ones(1), 0)

def press():
    while not all(Path(f"{{HERE}}.{{rank}}").exists() for rank in range({num_ranks})):
        time.sleep(0.05)
    time.sleep(1)  # the next line of each rank is what it is stopped in
    os.kill(os.getpid(), signal.SIGINT)

try:
    threading.Thread(target=press, daemon=True).start()
    run({call}, timeout=600)
except KeyboardInterrupt as stop:
    print(stop)
"""


# (what is called, what the error says, how many stacks it shows)
STOPS = [
    ("computes, 2", "rank 0  computes", 1),
    ("computes_in_c, 2", "rank 0  computes", 1),
    (
        "hangs, 4",
        r"ranks 1, 2 and 3 wait in all_reduce #1 \(.*\) "
        "for rank 0, which sleeps or blocks before any operation",
        2,
    ),
    (
        "sends_slowly, 2, topology=Topology(hosts=2, ranks_per_host=1, slow=Link(1e-3))",
        "(rank 0 waits in send #1 to rank 1|rank 1 waits in recv #1 from rank 0) "
        ".* its data is under way",
        2,
    ),
]


def test_stop_returns_soon_with_each_distinct_stack(tmp_path):
    """All drivers run side by side, each undisturbed for a second once its ranks have started."""
    drivers = []
    for number, (call, _, _) in enumerate(STOPS):
        path = tmp_path / f"{number}.py"
        num_ranks = call.split(",")[1]
        path.write_text(STOPPED.format(call=call, num_ranks=num_ranks))
        drivers.append(script(path))
    for (call, said, num_stacks), driver in zip(STOPS, drivers, strict=True):
        text = driver.output()  # ten minutes would pass without the press
        assert re.search(said, text), text
        assert text.count(f"in {call.partition(',')[0]}") == num_stacks, text
