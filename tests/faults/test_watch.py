"""`labkit watch` at a terminal of its own: saves, keys while a check runs, and every way out.

The command is forked, and runs on a pseudo-terminal, in a clone, with a store of its own. Where no
check is needed its checker does nothing.
"""

import contextlib
import fcntl
import importlib
import multiprocessing
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

from labkit import cli, progress

pytestmark = pytest.mark.clock

ROOT = Path(__file__).parents[2]
NAME, NEXT = "model_state_bytes", "activation_bytes"
PATIENCE_S = 200
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\r")


class NoChecker:
    """Stands in for the process that checks."""

    handles, is_busy = (), False

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        Path("closed").touch()

    def begin(self, name, workspace, timeout_s):
        pass

    def take(self):
        return None


def command(terminal, clone, words, checks):
    """Be `labkit watch` at this terminal. checks: with a checker, which is a new interpreter."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked in the fork server
    os.setsid()
    descriptor = os.open(terminal, os.O_RDWR)
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(descriptor, number)
    os.chdir(clone)
    os.environ.update(
        LABKIT_HOME=f"{clone}/home", PYTHONPATH=str(ROOT), TERM="xterm-256color", NO_COLOR="1"
    )
    os.environ.pop("COLUMNS", None)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    if not checks:
        importlib.import_module("labkit.cli.watch").Checker = NoChecker
    sys.argv = ["labkit", "watch", *words]
    cli.main()


class Watching:
    """The command, its terminal, and what it has shown so far."""

    def __init__(self, clone, *words, checks=True):
        self.clone, self.shown = clone, ""
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        self.process = multiprocessing.get_context("forkserver").Process(
            target=command, args=(os.ttyname(self.theirs), str(clone), words, checks)
        )
        self.process.start()

    def read(self, timeout_s=0.05):
        if self.ours is not None and select.select([self.ours], [], [], timeout_s)[0]:
            with contextlib.suppress(OSError):
                self.shown += _CONTROL.sub("", os.read(self.ours, 65_536).decode(errors="replace"))

    def until(self, pattern, since=0):
        """Read until the pattern is shown after position `since`; the position behind it."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, self.shown[since:])):
            assert time.monotonic() < deadline_s, f"no {pattern!r} in {self.shown[since:][-1500:]}"
            assert self.process.is_alive(), f"it has ended: {self.shown[-2000:]}"
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
        while self.process.is_alive():
            assert time.monotonic() < deadline_s, "it goes on"
            self.read() if self.ours is not None else self.process.join(1)
        return self.process.exitcode

    def descendants(self):
        processes, found, unseen = listing(), set(), {self.process.pid}
        while unseen:
            unseen = {pid for pid, parent, _ in processes if parent in unseen}
            found |= unseen
        return found

    def save_what_hangs(self):
        """Save an answer that does not end; the process that runs it."""
        said = self.clone / "rank"
        self.save(
            f"import os, time\n\ndef {NAME}(*arguments):\n"
            f"    open({str(said)!r}, 'w').write(f'{{os.getpid()}}\\n')\n    time.sleep(600)\n"
        )
        deadline_s = time.monotonic() + PATIENCE_S
        while not (said.exists() and said.read_text().endswith("\n")):
            assert time.monotonic() < deadline_s, f"no rank: {self.shown[-1500:]}"
            self.read()
        rank = int(said.read_text())
        said.unlink()
        assert rank in self.descendants()
        return rank


def listing():
    """(process id, its parent's, state) of every process."""
    words = ["ps", "-A", "-o", "pid=,ppid=,state="]
    lines = subprocess.run(words, capture_output=True, text=True).stdout.splitlines()
    return [(int(pid), int(parent), state) for pid, parent, state in map(str.split, lines)]


def left_of(processes):
    """Those that are still there after a while; the dead that nobody has buried do not count."""
    deadline_s = time.monotonic() + PATIENCE_S
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
        started.append(Watching(clone, *words, "--timeout", "600", **options))
        return started[-1]

    yield start
    for watching in started:
        watching.process.kill()
        watching.process.join()
        if watching.ours is not None:
            watching.close_terminal()


def test_a_session_checks_saves_answers_keys_and_leaves_no_process(start, clone):
    """All in one session: a start takes seconds."""
    watching = start(NAME)
    at = watching.until(f"{NAME}: not attempted")

    # A save is checked. Keys answer while that check runs, and it goes on.
    rank = watching.save_what_hangs()
    began = len(watching.shown)
    for number in (1, 2):
        watching.press("h")
        at = watching.until(f"hint {number} of ", at)
    watching.press("\x1b[A")  # an arrow, which is none of the keys
    watching.press("e")
    at = watching.until(re.escape(str(clone / "exercises" / f"{NAME}.py")), at)
    watching.press("s")
    at = watching.until("y/n", at)
    watching.press("x")
    at = watching.until("h hint", at)
    watching.press("s")  # a question that nobody answers before there is a pass
    watching.until("y/n", at)
    assert "The solution of" not in watching.shown
    assert f"{NAME}: " not in watching.shown[began:], "the check has ended meanwhile"
    assert rank in watching.descendants()

    # A save during a check ends that one, with its rank, and begins another.
    watching.save((clone / "solutions" / f"{NAME}.py").read_text())
    at = watching.until(f"{NAME}: passed", began)
    at = watching.until(f"1 of \\d+ .* {NEXT}", at)
    watching.until("h hint", at)  # the keys again, where the question was
    assert not left_of({rank})

    # The next one, the list with its mark, and the one before.
    watching.press("n")
    at = watching.until(f"{NEXT}: not attempted", at)
    watching.press("l")
    at = watching.until(f"(?s){NAME} .*?passed.*?> +{NEXT} ", at)
    watching.press("p")
    at = watching.until(f"{NAME}: passed", at)
    watching.press("s")  # after a pass, without a question
    at = watching.until(f"The solution of {NAME}", at)

    # r checks again. A session that is killed in the middle of a check leaves no process.
    watching.press("r")
    at = watching.until(f"{NAME}: passed", at)
    watching.save_what_hangs()
    processes = watching.descendants()
    watching.process.kill()
    assert watching.status() == -signal.SIGKILL
    assert not left_of(processes)

    # It remembers what the commands remember. The checks that were ended are none.
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
    watching = start(NAME, checks=False)
    at = watching.until("h hint")

    (clone / "solutions" / f"{NAME}.py").unlink()
    watching.press("s")
    watching.until("y/n", at)
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
    shutil.rmtree(clone / "home", ignore_errors=True)
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
}


@pytest.mark.parametrize("way", WAYS_OUT)
def test_every_way_out_closes_the_checker_and_restores_the_terminal(start, clone, way):
    leave, statuses = WAYS_OUT[way]
    watching = start(NAME, checks=False)
    watching.until("h hint")
    leave(watching)
    assert watching.status() in statuses
    assert (clone / "closed").exists()
    if way != "closed":
        assert termios.tcgetattr(watching.theirs) == watching.before
        assert "Traceback" not in watching.shown
