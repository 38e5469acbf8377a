"""`labkit watch` at a terminal of its own: saves, keys, and every way out.

The command is forked, with the ranks of its checks: an interpreter of its own would import torch
twice. It runs on a pseudo-terminal, in a clone, with a store of its own.
"""

import contextlib
import fcntl
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
from tests.forked_programs import ForkedProgram
from tests.processes import are_gone_within

ROOT = Path(__file__).parents[2]
NAME, NEXT = "model_state_bytes", "activation_bytes"
PATIENCE_S = 60
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\r")


def command(terminal, words, sigint):
    """Be `labkit watch` at this terminal, with this handler of SIGINT where it begins."""
    descriptor = os.open(terminal, os.O_RDWR)
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
    for number in range(3):
        os.dup2(descriptor, number)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
    sys.argv = ["labkit", "watch", *words]
    signal.signal(signal.SIGINT, sigint)
    cli.main()


class Watching:
    """The command, its terminal, and what it has shown so far."""

    def __init__(self, clone, sigint=signal.default_int_handler):
        self.clone, self.shown = clone, ""
        self.ours, self.theirs = os.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.before = termios.tcgetattr(self.theirs)
        words = (NAME, "--timeout", "600")
        own = {"LABKIT_HOME": f"{clone}/home", "TERM": "xterm-256color", "NO_COLOR": "1"}
        env = {k: v for k, v in os.environ.items() if k != "COLUMNS"} | own
        self.process = ForkedProgram(
            command, os.ttyname(self.theirs), words, sigint, cwd=clone, env=env
        )

    def read(self):
        if select.select([self.ours], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                self.shown += _CONTROL.sub("", os.read(self.ours, 65_536).decode(errors="replace"))

    def until(self, pattern, since=0):
        """Read until the pattern is shown after position `since`; the position behind it."""
        self.wait_for(lambda: re.search(pattern, self.shown[since:]), f"no {pattern!r}")
        return since + re.search(pattern, self.shown[since:]).end()

    def wait_for(self, is_so, otherwise):
        """Read until that is so."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not is_so():
            last = f"{otherwise}; it showed last:\n{self.shown[-1500:]}"
            assert time.monotonic() < deadline_s, last
            assert self.process.poll() is None, f"it has ended; {last}"
            self.read()

    def press(self, keys):
        os.write(self.ours, keys.encode())

    def save(self, text):
        """As editors do: another file, renamed."""
        path = self.clone / "exercises" / f"{NAME}.py"
        path.with_suffix(".new").write_text(text)
        os.replace(path.with_suffix(".new"), path)

    def status(self):
        """Return the command's exit status after it was asked to end."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            last = f"it goes on; it showed last:\n{self.shown[-1500:]}"
            assert time.monotonic() < deadline_s, last
            self.read()
        return self.process.poll()

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    for folder in ("exercises", "solutions"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    monkeypatch.setenv("LABKIT_HOME", str(tmp_path / "home"))
    return tmp_path


@pytest.fixture
def watching(clone):
    """The command in the clone; it is gone at the end whatever the test found."""
    with contextlib.closing(Watching(clone)) as watching:
        yield watching


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


# In a JupyterLab that a script has put into the background, a terminal's shell hands on that SIGINT
# is ignored. `watch` has the terminal, and hears Ctrl-C.
@pytest.mark.parametrize(
    ("way", "sigint"),
    [
        ("Ctrl-C", signal.default_int_handler),
        ("Ctrl-C", signal.SIG_IGN),
        ("Ctrl-C twice", signal.default_int_handler),
        ("SIGTERM", signal.default_int_handler),
        ("killed", signal.default_int_handler),
    ],
)
def test_a_session_that_ends_in_a_check_leaves_no_process_and_the_terminal_as_before(
    clone, way, sigint
):
    with contextlib.closing(Watching(clone, sigint)) as watching:
        watching.until("h hint")
        said = clone / "rank"
        watching.save(
            f"import os, time\n\ndef {NAME}(*arguments):\n"
            f"    open({str(said)!r}, 'w').write(f'{{os.getpid()}}\\n')\n    time.sleep(600)\n"
        )
        watching.wait_for(
            lambda: said.exists() and said.read_text().endswith("\n"), "no rank has started"
        )
        if way.startswith("Ctrl-C"):
            watching.press("\x03" * (1 + way.endswith("twice")))
        else:
            watching.process.send_signal(signal.SIGTERM if way == "SIGTERM" else signal.SIGKILL)
        assert watching.status() == (-signal.SIGKILL if way == "killed" else 130)
        assert are_gone_within([int(said.read_text())], PATIENCE_S)
        if way != "killed":
            assert termios.tcgetattr(watching.theirs) == watching.before
            assert "Traceback" not in watching.shown


def test_what_is_wrong_with_a_file_is_a_line_and_the_session_goes_on(watching, clone):
    at = watching.until("h hint")
    solution, own = clone / "solutions" / f"{NAME}.py", clone / "exercises" / f"{NAME}.py"
    whole = solution.read_text()
    solution.write_bytes(b"\xff\xfe")
    watching.press("r")
    at = watching.until(r"labkit: (?s:.*?)can't\s+decode", at)
    solution.write_text(whole)
    own.rename(clone / "elsewhere.py")
    watching.press("r")
    at = watching.until(r"labkit: (?s:.*?)No\s+such\s+file", at)

    shutil.rmtree(clone / "home", ignore_errors=True)
    (clone / "home").write_text("a file where a folder should be")
    watching.press("h")  # reported at once, and not after the end
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
