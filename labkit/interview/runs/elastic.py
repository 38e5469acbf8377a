"""torchrun's elastic agent when one of its workers fails: which processes go on?

    round 0    worker 0 waits    worker 1 exits with 1       two processes
    round 1    worker 0          worker 1                    two more, with new ranks and new memory

Each worker leaves a file with its round and its process. No model is trained, and nothing is sent.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from labkit.interview.runs.real_run import real_run

NUM_WORKERS = 2
_WORKER = """
import os, sys, time
folder, round = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
open(os.path.join(folder, f"{round}-{os.getpid()}"), "w").close()
while round == "0":
    if os.environ["RANK"] == "1" and len(os.listdir(folder)) == 2:  # the other has started
        sys.exit(1)
    time.sleep(0.05)
"""


@real_run
def processes() -> tuple[frozenset[int], ...]:
    """The processes of NUM_WORKERS workers before and after one of them fails."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "worker.py"
        script.write_text(_WORKER)
        seen = Path(folder) / "seen"
        seen.mkdir()
        command = [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--local-addr", "127.0.0.1", "--nproc-per-node", str(NUM_WORKERS)),
            *("--max-restarts", "1", "--monitor-interval", "0.1", str(script), str(seen)),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=180)
        found = [each.name.split("-") for each in seen.iterdir()]
    return tuple(frozenset(int(pid) for n, pid in found if n == number) for number in "01")


def survivors() -> int:
    """Of NUM_WORKERS workers of torchrun, how many keep their process when one of them fails."""
    before, after = processes()
    return len(before & after)


def started_again() -> int:
    """How many workers torchrun starts when one of NUM_WORKERS fails."""
    before, after = processes()
    return len(after - before)
