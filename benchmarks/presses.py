"""Ctrl-C, pressed 200 times at random moments: how each program ends, and what it leaves.

    python benchmarks/presses.py            200 presses, two programs side by side
    python benchmarks/presses.py 40 --seed 7

Each program is a process at a terminal of its own (a pty), with a home, a folder for temporary
files and a mark in its environment, by which what it leaves is found (Linux). A cell is stopped as
Jupyter does: SIGINT to the group of a kernel.

    ended          within a minute; else the press was swallowed
    130            exit status 130; "by signal": ended by SIGINT itself, which a shell shows as 130
    own            the program was over: its own status
    traceback      shown, with a line of labkit's
    before         the traceback of an interpreter that has not come to labkit's first line
    left           processes that are there 30 s later; files: in the folder for temporary files
    terminal       as it was before
    longest        seconds from the press to the end
"""

import concurrent.futures
import contextlib
import os
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from jupyter_client import BlockingKernelClient, KernelManager
from measure import command_line, machine

ROOT = Path(__file__).parents[1]
NAME = "model_state_bytes"
PATIENCE_S = 60.0
LEFT_S = 30.0
MARK = "LABKIT_PRESSED"
LABKIT = (sys.executable, "-m", "labkit.cli")

ASLEEP = f"""
import os, time

def {NAME}(*arguments):
    open("ready", "w").close()
    time.sleep(600)
"""
RUN = """
import time, labkit

def sleeps(world):
    open("ready", "w").close()
    time.sleep(600)

labkit.run(sleeps, 2, timeout=600)
"""
SESSION = """
import labkit

with labkit.Session(2) as session:
    while True:
        session.execute("import time; open('ready', 'w').close(); time.sleep(0.2)")
"""
# A terminal gives its programs a session, itself as their terminal, and SIGINT as at a prompt.
AT_A_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, getattr(signal, sys.argv[1]))
open("began", "w").close()  # before that, a key reaches nobody
os.execvp(sys.argv[2], sys.argv[2:])
"""
COMMANDS = """
    list; --help; plan --model llama3-8b --cluster h100 --gpus 8; doctor; preflight; cards; drill
    case; mock --minutes 6; bank; progress; serve .; profile x.json; hint ring_all_reduce
"""


@dataclass(frozen=True)
class Situation:
    """A place to press Ctrl-C: a random moment from the start, or from `ready` (a file) on."""

    name: str
    share: int
    """Presses, of 200."""
    words: tuple[str, ...]
    file: tuple[str, str] = ("", "")
    """A file that the program needs, and its text."""
    when_ready: bool = False
    most_s: float = 1.0
    """The last moment, in seconds after the beginning, or after `ready`."""
    times: int = 1
    sigint: str = "SIG_DFL"


def situations() -> list[Situation]:
    """Return all but cells. The last moments are measured here, on this machine."""
    asleep, run, session = (
        (f"exercises/{NAME}.py", ASLEEP),
        ("run.py", RUN),
        ("session.py", SESSION),
    )
    watch, check = (*LABKIT, "watch", NAME), (*LABKIT, "check", NAME)
    right = (f"exercises/{NAME}.py", (ROOT / "solutions" / f"{NAME}.py").read_text())
    watch_s = seconds_of(Situation("", 0, watch, asleep))
    check_s = seconds_of(Situation("", 0, check, right))
    run_s = seconds_of(Situation("", 0, (sys.executable, "run.py"), run))
    commands = [words.split() for line in COMMANDS.split("\n") for words in line.split(";")]
    found = [
        Situation("watch, in a check", 24, watch, asleep, when_ready=True),
        Situation("watch, SIGINT ignored outside", 10, watch, asleep, True, sigint="SIG_IGN"),
        Situation("watch, from its start", 24, watch, asleep, most_s=watch_s),
        Situation("check, from its start", 40, check, right, most_s=check_s),
        Situation("check, pressed twice", 16, check, asleep, most_s=check_s, times=2),
        Situation("run, from its start", 16, (sys.executable, "run.py"), run, most_s=run_s),
        Situation("run, on its ranks", 14, (sys.executable, "run.py"), run, when_ready=True),
        Situation("session", 16, (sys.executable, "session.py"), session, when_ready=True),
    ]
    rest = [words for words in commands if words]
    for words in rest:
        one = Situation("imports of every command", 2, (*LABKIT, *words))
        found.append(Situation(one.name, 2, one.words, most_s=min(seconds_of(one, 4.0), 4.0)))
    return found


@dataclass
class End:
    """End of one program."""

    status: int | None
    shown: str
    seconds: float
    num_left: int
    num_files: int
    is_terminal_as_before: bool

    @property
    def has_traceback(self) -> bool:
        """With a frame of labkit's own, not only of the interpreter's start."""
        return "Traceback" in self.shown and bool(re.search(r'/labkit/[^"\n]*\.py"', self.shown))

    @property
    def was_before(self) -> bool:
        """Python's own: labkit's first line had not run."""
        return "Traceback" in self.shown and not self.has_traceback


class Program:
    """A process at a terminal of its own; made with `with`, and gone after it."""

    def __init__(self, situation: Situation) -> None:
        self.mark = uuid.uuid4().hex
        self._folder = Path(tempfile.mkdtemp(prefix="p"))
        self.temporary = self._folder / "t"
        self.temporary.mkdir()
        for name in ("exercises", "solutions"):
            shutil.copytree(ROOT / name, self._folder / name)
        name, text = situation.file
        if name:
            (self._folder / name).write_text(text)
        self.ready = self._folder / "ready"
        self._ours, self._theirs = pty.openpty()
        self._before = termios.tcgetattr(self._theirs)
        self.shown = b""
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", AT_A_TERMINAL, situation.sigint, *situation.words],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            cwd=self._folder,
            env=environment(self.mark, self._folder, self.temporary),
        )
        while not (self._folder / "began").exists():
            time.sleep(0.001)

    def read(self, seconds: float = 0.02) -> None:
        """Take in what it shows."""
        if select.select([self._ours], [], [], seconds)[0]:
            self.shown += os.read(self._ours, 65_536)

    def press(self) -> None:
        """Ctrl-C."""
        os.write(self._ours, b"\x03")

    def end(self) -> End:
        """Wait for it, and look at what it leaves."""
        began_s = time.monotonic()
        while self.process.poll() is None and time.monotonic() - began_s < PATIENCE_S:
            self.read()
        seconds = time.monotonic() - began_s
        while select.select([self._ours], [], [], 0)[0]:
            self.read()
        is_as_before = termios.tcgetattr(self._theirs) == self._before
        deadline_s = time.monotonic() + LEFT_S
        while (left := marked(self.mark)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return End(
            self.process.poll(),
            self.shown.decode(errors="replace"),
            seconds,
            len(left),
            len(list(self.temporary.iterdir())),
            is_as_before,
        )

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *of_an_error: object) -> None:
        for pid in marked(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)
        shutil.rmtree(self._folder, ignore_errors=True)


def environment(mark: str, folder: Path, temporary: Path) -> dict[str, str]:
    """Return a program's environment; what it starts has the mark too."""
    own = {"TMPDIR": temporary, "LABKIT_HOME": folder / "home", "PYTHONPATH": ROOT, MARK: mark}
    return {**os.environ, "TERM": "xterm", **{name: str(value) for name, value in own.items()}}


def marked(mark: str) -> list[int]:
    """Return the processes that have this mark in their environment, dead ones left out."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def seconds_of(situation: Situation, most_s: float = 30.0) -> float:
    """From its start until it is ready, or has ended, `most_s` at most."""
    with Program(situation) as program:
        began_s = time.monotonic()
        while not program.ready.exists() and program.process.poll() is None:
            if time.monotonic() - began_s > most_s:
                break
            program.read()
        return time.monotonic() - began_s


def pressed(situation: Situation, draws: random.Random) -> End:
    """Press once (or `times`) at a random moment; return the end. Repeat if it was over before."""
    while True:
        moment_s, pause_s = draws.uniform(0, situation.most_s), draws.uniform(0, 0.3)
        with Program(situation) as program:
            while situation.when_ready and not program.ready.exists():
                if program.process.poll() is not None:
                    raise RuntimeError(program.shown.decode())
                program.read()
            deadline_s = time.monotonic() + moment_s
            while (rest_s := deadline_s - time.monotonic()) > 0:
                program.read(min(rest_s, 0.02))
            if program.process.poll() is not None:
                continue
            program.press()
            for _ in range(situation.times - 1):
                time.sleep(pause_s)
                program.press()
            return program.end()


CELL = "import labkit, time\nlabkit.run(lambda world: time.sleep(600), 2, timeout=600)"
GOOD = "import labkit\nassert labkit.run(lambda world: world.rank, 2).values == [0, 1]"


def stopped_cells(num_presses: int, draws: random.Random) -> list[End]:
    """Return a run in a cell of one kernel, stopped at random moments; the next one must be good.

    130 stands for a cell that ended with KeyboardInterrupt.
    """
    mark, folder, ends = uuid.uuid4().hex, Path(tempfile.mkdtemp(prefix="p")), []
    temporary = folder / "t"
    temporary.mkdir()
    manager = KernelManager(connection_file=str(folder / "k.json"), transport="ipc")
    manager.start_kernel(cwd=str(folder), env=environment(mark, folder, temporary))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        own = set(marked(mark))
        for _ in range(num_presses):
            cell = client.execute(CELL)
            heard(client, cell, "execute_input")
            time.sleep(draws.uniform(0, 2.0))
            began_s = time.monotonic()
            manager.interrupt_kernel()
            error = heard(client, cell, "status")
            seconds = time.monotonic() - began_s
            deadline_s = time.monotonic() + LEFT_S
            while (left := leaders(set(marked(mark)) - own)) and time.monotonic() < deadline_s:
                time.sleep(0.05)
            is_good = error and not heard(client, client.execute(GOOD), "status")
            ends.append(End(130 if is_good else 1, error, seconds, len(left), 0, True))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        shutil.rmtree(folder, ignore_errors=True)
    return ends


def heard(client: BlockingKernelClient, cell: str, kind: str) -> str:
    """Listen until a cell has sent that kind of message (status: idle); the error until then."""
    error = ""
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE_S)
        if message["parent_header"].get("msg_id") != cell:
            continue
        content = message["content"]
        if message["msg_type"] == "error":
            error = "\n".join(content["traceback"])
        if message["msg_type"] == kind and content.get("execution_state", "idle") == "idle":
            return error


def leaders(pids: set[int]) -> list[int]:
    """Return the processes that lead a session: ranks."""
    found = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == pid:
                found.append(pid)
    return found


def row(name: str, ends: list[End]) -> str:
    """Return a line of the table."""
    statuses = Counter(end.status for end in ends)
    num_130, num_signal, num_lost = statuses[130], statuses[-signal.SIGINT], statuses[None]
    counts = [
        len(ends),
        len(ends) - num_lost,
        num_130,
        num_signal,
        len(ends) - num_130 - num_signal - num_lost,
        sum(end.has_traceback for end in ends),
        sum(end.was_before for end in ends),
        num_lost,
        sum(end.num_left > 0 for end in ends),
        sum(end.num_files > 0 for end in ends),
        sum(end.is_terminal_as_before for end in ends),
    ]
    longest_s = max(end.seconds for end in ends)
    return f"{name:30}" + "".join(f"{count:>10}" for count in counts) + f"{longest_s:>9.1f}"


HEADINGS = "presses ended 130 by_signal own traceback before swallowed left files terminal"


def main() -> None:
    """Press, and print the table."""
    parser = command_line(__doc__ or "")
    parser.add_argument("presses", nargs="?", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--only", default="", help="situations whose names begin so")
    parser.add_argument("--show", action="store_true", help="what was not as it should be")
    options = parser.parse_args()
    if options.presses < 1 or not Path("/proc/self/environ").exists():
        parser.error("give a number of presses, on Linux: what is left is looked up in /proc")
    print(f"{machine()}; seed {options.seed}", flush=True)
    chosen = [one for one in situations() if one.name.startswith(options.only)]
    print(f"{'':30}" + "".join(f"{word:>10}" for word in HEADINGS.split()) + f"{'longest':>9}")
    ends: dict[str, list[End]] = {}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        jobs: dict[str, list[concurrent.futures.Future[End]]] = {}
        for number, one in enumerate(chosen):
            for press in range(max(1, round(one.share * options.presses / 200))):
                draws = random.Random(f"{options.seed} {number} {press}")
                jobs.setdefault(one.name, []).append(pool.submit(pressed, one, draws))
        for name, submitted in jobs.items():
            ends[name] = [job.result() for job in submitted]
            print(row(name, ends[name]), flush=True)
    if (name := "a cell, stopped").startswith(options.only):
        num_presses = max(1, options.presses * 16 // 200)
        ends[name] = stopped_cells(num_presses, random.Random(options.seed))
        print(row(name, ends[name]))
    print(row("together", [end for found in ends.values() for end in found]))
    if options.show:
        for name, found in ends.items():
            for end in found:
                if end.status != 130 or "Traceback" in end.shown or end.num_left or end.num_files:
                    print(f"\n--- {name}: {end}")


if __name__ == "__main__":
    main()
