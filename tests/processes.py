"""Whether processes have ended. One that is dead has, also before its parent has read its status.

The ranks of a driver that was killed get process 1 as their parent, which takes seconds for that
in some containers.
"""

import subprocess
import time


def alive(pids):
    """Those of these process ids whose processes have not ended."""
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
