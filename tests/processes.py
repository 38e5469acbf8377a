"""Find out whether processes have ended, or are all asleep.

One that is dead has ended, also before its parent has read its status.

The ranks of a driver that was killed get process 1 as their parent, which takes seconds for that
in some containers.
"""

import subprocess
import sys
import time
from pathlib import Path


def alive(pids):
    """Return those of these process ids whose processes have not ended."""
    words = ["ps", "-o", "pid=,state=", "-p", ",".join(map(str, pids))]
    lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    return [int(pid) for pid, state in map(str.split, lines) if not state.startswith("Z")]


def are_gone_within(pids, seconds):
    """Wait until all of them have ended, that long at most; whether they have."""
    deadline_s = time.monotonic() + seconds
    while alive(pids):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def is_asleep(pid):
    """Return whether no thread of a process runs, or waits for its turn on a core."""
    if sys.platform == "linux":
        tasks = Path(f"/proc/{pid}/task").glob("*/stat")
        states = [task.read_text().rpartition(")")[2].split()[0] for task in tasks]
    else:
        words = ["ps", "-o", "state=", "-p", str(pid)]
        states = subprocess.run(words, capture_output=True, text=True).stdout.split()
    return not any(state.startswith("R") for state in states)


class Stillness:
    """Look at processes several times in a row, and tell whether all of them were asleep each time.

    A process that is on its way to where it will wait runs, or waits for its turn, or for another
    one that does. So this holds on the slowest machine, where a sleep of a second does not.
    """

    def __init__(self, num_looks=4):
        """num_looks: a rank is asleep for a moment while it waits for a page or for a disk."""
        self._num_looks, self._num_asleep = num_looks, 0

    def look(self, pids):
        """Look once more; whether they have come to rest."""
        try:
            are_asleep = all(map(is_asleep, pids))
        except OSError:  # a thread has ended between two steps of a look
            are_asleep = False
        self._num_asleep = self._num_asleep + 1 if are_asleep else 0
        return self._num_asleep >= self._num_looks


def wait_until_still(pids):
    """Wait until these processes have come to rest. A hang of the test's own is ended by nobody."""
    stillness = Stillness()
    while not stillness.look(pids):
        time.sleep(0.05)
