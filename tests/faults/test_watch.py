"""`labkit watch` at a terminal of its own: saves, keys, and every way out.

The command is forked, and runs on a pseudo-terminal, in a clone, with a store of its own.
"""

import contextlib
import fcntl
import multiprocessing
import os
import re
import select
import shutil
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pytest

from labkit import cli, progress
from labkit.cli.watch import END, pressed_keys
from tests.processes import are_gone_within

ROOT = Path(__file__).parents[2]
NAME, NEXT = "model_state_bytes", "activation_bytes"
PATIENCE_S = 200
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\r")


def command(terminal, clone, words):
    """Be `labkit watch` at this terminal."""
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
    sys.argv = ["labkit", "watch", *words]
    cli.main()


class Watching:
    """The command, its terminal, and what it has shown so far."""

    def __init__(self, clone):
        self.clone, self.shown = clone, ""
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        words = (NAME, "--timeout", "600")
        self.process = multiprocessing.get_context("forkserver").Process(
            target=command, args=(os.ttyname(self.theirs), str(clone), words)
        )
        self.process.start()

    def read(self):
        if select.select([self.ours], [], [], 0.05)[0]:
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

    def status(self):
        """How the command ended, which it must have been told to."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.process.is_alive():
            assert time.monotonic() < deadline_s, "it goes on"
            self.read()
        return self.process.exitcode


@pytest.fixture
def clone(tmp_path, monkeypatch):
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def watching(clone):
    """The command in the clone; it is gone at the end whatever the test found."""
    watching = Watching(clone)
    yield watching
    watching.process.kill()
    watching.process.join()
    os.close(watching.ours)
    os.close(watching.theirs)


def test_saves_are_checked_and_keys_are_answered(watching, clone):
    at = watching.until(f"{NAME}: not attempted")
    for number in (1, 2):
        watching.press("h")
        at = watching.until(f"hint {number} of ", at)
    watching.press("\x1b[A")  # an arrow, which is none of the keys
    watching.press("s")
    at = watching.until("not passed yet", at)
    at = watching.until("h hint", at)
    assert "The solution of" not in watching.shown

    watching.save((clone / "solutions" / f"{NAME}.py").read_text())
    at = watching.until(f"{NAME}: passed", at)
    at = watching.until("1 of \\d+ exercises passed", at)
    watching.press("s")
    at = watching.until(f"The solution of {NAME}", at)
    watching.press("n")
    at = watching.until(f"{NEXT}: not attempted", at)
    watching.press("l")
    at = watching.until(f"(?s){NAME} .*?passed.*?{NEXT} ", at)
    watching.press("r")
    at = watching.until(f"{NEXT}: not attempted", at)
    watching.press("q")
    assert watching.status() == 0
    assert termios.tcgetattr(watching.theirs) == watching.before

    # It remembers what the commands remember.
    kinds = [(each.kind, each.detail.get("outcome")) for each in progress.events(NAME)]
    passed = ("check", "passed")
    assert kinds[:3] == [("check", "not attempted"), ("hint", None), ("hint", None)]
    assert kinds[3:] == [passed, ("solution", None)]


@pytest.mark.parametrize("way", ["Ctrl-C", "SIGTERM", "killed"])
def test_a_session_that_ends_in_a_check_leaves_no_process_and_the_terminal_as_before(
    watching, clone, way
):
    at = watching.until("h hint")
    said = clone / "rank"
    watching.save(
        f"import os, time\n\ndef {NAME}(*arguments):\n"
        f"    open({str(said)!r}, 'w').write(f'{{os.getpid()}}\\n')\n    time.sleep(600)\n"
    )
    deadline_s = time.monotonic() + PATIENCE_S
    while not (said.exists() and said.read_text().endswith("\n")):
        assert time.monotonic() < deadline_s, f"no rank: {watching.shown[at:]}"
        watching.read()
    if way == "Ctrl-C":
        watching.press("\x03")
    else:
        os.kill(watching.process.pid, signal.SIGTERM if way == "SIGTERM" else signal.SIGKILL)
    assert watching.status() == (-signal.SIGKILL if way == "killed" else 130)
    assert are_gone_within([int(said.read_text())], PATIENCE_S)
    if way != "killed":
        assert termios.tcgetattr(watching.theirs) == watching.before
        assert "Traceback" not in watching.shown


def test_what_is_wrong_with_a_file_is_a_line_and_the_session_goes_on(watching, clone):
    at = watching.until("h hint")
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
    watching.press("\x04")
    assert watching.status() == 0 and "Traceback" not in watching.shown


@pytest.mark.parametrize("several", [b"\x1b[A", b"\x1b[15~", b"\x1b[1;5C", b"\x1bOP", b"\x1bq"])
def test_an_arrow_is_no_key_and_a_terminal_that_is_gone_ends_them(several):
    ours, theirs = os.pipe()
    os.write(theirs, b"h" + several + b"E")
    assert pressed_keys(ours) == "he"
    assert pressed_keys(ours) == ""
    os.close(theirs)
    assert pressed_keys(ours) == END
    os.close(ours)
