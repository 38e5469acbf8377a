"""`labkit watch` at a terminal of its own: saves, keys while a check runs, and every way out.

The real command runs on a pseudo-terminal, in a clone, with a store of its own.
"""

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from labkit import progress

ROOT = Path(__file__).parents[2]
NAME, NEXT = "ring_all_reduce", "tree_broadcast"
HANGS = f"import time\n\ndef {NAME}(x, group):\n    time.sleep(600)\n"
# A line across; below it the verdict, and with each line of that the last lines are drawn anew.
CHECKED = f"(?s){NAME}, \\d\\d:\\d\\d:\\d\\d .*?"
PATIENCE_S = 140
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\r")


class Watching:
    """The command, its terminal, and what it has shown so far."""

    def __init__(self, clone, *words, columns=100):
        self.clone, self.shown = clone, ""
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        environment = {
            **os.environ,
            "LABKIT_HOME": str(clone / "home"),
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "NO_COLOR": "1",
        }
        environment.pop("COLUMNS", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "labkit.cli", "watch", *words],
            cwd=clone,
            env=environment,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def read(self, timeout_s=0.05):
        if self.ours is not None and select.select([self.ours], [], [], timeout_s)[0]:
            with contextlib.suppress(OSError):
                self.shown += _CONTROL.sub("", os.read(self.ours, 65_536).decode(errors="replace"))

    def until(self, pattern, since=0):
        """Read until the pattern is shown after position `since`; the position behind it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.shown[since:])):
            assert time.monotonic() < deadline_s, f"no {pattern!r} in {self.shown[since:][-1500:]}"
            assert self.process.poll() is None, f"it has ended: {self.shown[-2000:]}"
            self.read()
        return since + found.end()

    def press(self, keys):
        os.write(self.ours, keys.encode())

    def save(self, text):
        """As editors do: another file, renamed."""
        path = self.clone / "exercises" / f"{NAME}.py"
        path.with_suffix(".new").write_text(text)
        os.replace(path.with_suffix(".new"), path)

    def close_terminal(self):
        for descriptor in (self.ours, self.theirs):
            os.close(descriptor)
        self.ours = None

    def status(self):
        """How the command ended, which it must have been told to."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline_s, "it goes on"
            self.read() if self.ours is not None else time.sleep(0.05)
        return self.process.returncode

    def descendants(self):
        parents = {}
        for pid, parent, _ in listing():
            parents.setdefault(parent, set()).add(pid)
        found, unseen = set(), {self.process.pid}
        while unseen:
            unseen = set().union(*(parents.get(pid, set()) for pid in unseen))
            found |= unseen
        return found

    def wait_for_ranks(self, since=0):
        """Everything that belongs to it, once a check has three ranks that hang."""
        self.until("checking", since)
        deadline_s = time.monotonic() + PATIENCE_S
        # The process that checks, its resource tracker and fork server, and the ranks.
        while len(found := self.descendants()) < 6:
            assert time.monotonic() < deadline_s, f"no ranks: {self.shown[-1500:]}"
            self.read()
        return found


def listing():
    """(process id, its parent's, state) of every process."""
    command = ["ps", "-A", "-o", "pid=,ppid=,state="]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    return [(int(pid), int(parent), state) for pid, parent, state in map(str.split, lines)]


def left_of(processes):
    """Those that are still there after a while; the dead that nobody has buried do not count."""
    deadline_s = time.monotonic() + 20
    while True:
        left = {pid for pid, _, state in listing() if pid in processes and state[0] != "Z"}
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.1)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def start(clone):
    """Start the command in the clone; it is gone at the end whatever the test found."""
    started = []

    def start(*words, **options):
        started.append(Watching(clone, *words, **options))
        return started[-1]

    yield start
    for watching in started:
        if watching.process.poll() is None:
            watching.process.kill()
            watching.process.wait()
        if watching.ours is not None:
            watching.close_terminal()


def test_a_session(start, clone):
    """One after the other, in one session: a start takes seconds."""
    shutil.copy(clone / "solutions" / f"{NAME}.py", clone / "solution_of_mine.py")
    watching = start("--timeout", "600")

    # Without a name it is the first one; it is checked at once.
    at = watching.until(f"{CHECKED}{NAME}: not attempted: still the stub")

    # A save is checked. Keys answer while that check runs, and it goes on.
    watching.save(HANGS)
    ranks = watching.wait_for_ranks(at)
    began = len(watching.shown)
    watching.press("h")
    at = watching.until("hint 1 of 3: the concept", began)
    watching.press("h")
    at = watching.until("hint 2 of 3: the invariant", at)
    watching.press("\x1b[A")  # an arrow, which is none of the keys
    watching.press("e")
    at = watching.until(re.escape(str(clone / "exercises" / f"{NAME}.py")), at)
    watching.press("s")
    at = watching.until("You have not passed .* y/n", at)
    watching.press("x")
    watching.until("h hint", at)
    assert "The solution of" not in watching.shown
    assert not re.search(CHECKED, watching.shown[began:]), "the check has ended meanwhile"
    assert ranks <= watching.descendants()
    watching.press("s")  # a question that nobody answers before there is a pass
    watching.until("You have not passed .* y/n", at)

    # A save during a check ends that one, with its ranks, and begins another.
    watching.save((clone / "solution_of_mine.py").read_text())
    at = watching.until(f"{NAME}: passed", began)
    assert "not attempted" not in watching.shown[began:at]
    at = watching.until("1 of \\d+ exercises passed. n goes on to " + NEXT, at)
    watching.until("h hint", at)  # the keys again, where the question was
    of_ranks = ranks - watching.descendants()
    assert len(of_ranks) >= 3 and not left_of(of_ranks)

    # The next one, the list with its mark, and the one before; r checks again.
    watching.press("n")
    at = watching.until(f"{NEXT}: not attempted", at)
    watching.press("l")
    at = watching.until(f"(?s){NAME} .*?passed.*?> +{NEXT} ", at)
    watching.press("p")
    at = watching.until(f"{NAME}: passed", at)
    watching.press("s")  # after a pass, without a question
    at = watching.until(f"The solution of {NAME}", at)
    watching.press("r")
    at = watching.until(f"{NAME}: passed", at)

    processes = watching.descendants()
    watching.press("q")
    assert watching.status() == 0
    assert termios.tcgetattr(watching.theirs) == watching.before
    assert not left_of(processes)

    # What it remembers is what the commands remember: the check that was ended is none.
    kinds = [(each.kind, each.detail.get("outcome")) for each in progress.events(NAME)]
    assert kinds == [
        ("check", "not attempted"),
        ("hint", None),
        ("hint", None),
        ("check", "passed"),
        ("check", "passed"),
        ("solution", None),
        ("check", "passed"),
    ]


def test_what_is_wrong_with_a_file_is_a_line_and_the_session_goes_on(start, clone):
    watching = start("--timeout", "600")
    at = watching.until(f"{CHECKED}{NAME}: not attempted")

    (clone / "solutions" / f"{NAME}.py").unlink()
    watching.press("s")
    watching.until("You have not passed .* y/n", at)
    watching.press("y")
    at = watching.until(r"labkit: .*No\s+such\s+file", at)

    catalog = clone / "exercises" / "catalog.toml"
    whole = catalog.read_text()
    catalog.write_text("[[")
    watching.press("l")
    at = watching.until(r"labkit: (?s:.*?)not\s+valid\s+TOML", at)
    catalog.rename(clone / "elsewhere.toml")
    watching.press("h")
    at = watching.until(r"labkit: (?s:.*?)No\s+such\s+file", at)

    catalog.write_text(whole)
    shutil.rmtree(clone / "home")
    (clone / "home").write_text("a file where a folder should be")
    watching.press("h")  # told at once, and not after the end
    at = watching.until(r"labkit: (?s:.*?)not\s+remembered", at)

    watching.press("l")
    watching.until(f"(?s){NAME} .*?{NEXT} ", at)
    watching.press("q")
    assert watching.status() == 0 and "Traceback" not in watching.shown


WAYS_OUT = {
    "q": (lambda watching: watching.press("q"), {0}),
    "Ctrl-C": (lambda watching: watching.press("\x03"), {130}),
    "SIGTERM": (lambda watching: watching.process.terminate(), {143}),
    # Which of the two is noticed first, nobody knows: the signal, or the end of the keys.
    "closed": (lambda watching: watching.close_terminal(), {0, 129}),
    "SIGKILL": (lambda watching: watching.process.kill(), {-signal.SIGKILL}),
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_no_way_out_leaves_a_process_or_another_terminal(start, clone, way):
    leave, statuses = WAYS_OUT[way]
    (clone / "exercises" / f"{NAME}.py").write_text(HANGS)
    watching = start(NAME, "--timeout", "600", columns=60)
    processes = watching.wait_for_ranks()
    leave(watching)
    assert watching.status() in statuses
    assert not left_of(processes)
    if way not in ("closed", "SIGKILL"):
        assert termios.tcgetattr(watching.theirs) == watching.before
        assert "Traceback" not in watching.shown
    assert progress.events(NAME, "check") == []
