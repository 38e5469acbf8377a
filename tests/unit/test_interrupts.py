"""SIGINT: a rank hears none that was sent to its parent's group, and a script ends with 130."""

import os
import signal
import subprocess
import sys

import pytest

from labkit import interrupts
from labkit.launch import Interrupted
from labkit.launch.errors import as_interrupted
from tests.forked_programs import ForkedProgram


def leaves_its_group(moment):
    """SIGINT comes at this moment of what a rank does first; the handler it has then is printed."""

    def press():
        signal.raise_signal(signal.SIGINT)  # to this thread: a rank has no other one then

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a driver in a shell's background hands on
    if moment == "before":
        press()
    # ForkedProgram leads a session already. Right before the call that leaves the group is the last
    # moment at which a terminal reaches the process.
    os.setsid = press if moment == "last" else lambda: None
    interrupts.leave_group()
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)


@pytest.mark.parametrize("moment", ["before", "last"])
def test_a_press_that_came_before_a_rank_left_the_group_is_dropped(moment):
    assert ForkedProgram(leaves_its_group, moment).output().strip() == "True"


def test_what_a_block_starts_has_sigint_blocked():
    with interrupts.blocked():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, set())
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, set())


@pytest.mark.parametrize("is_interactive", [False, True])
def test_a_script_that_does_not_catch_it_ends_with_the_report(is_interactive, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: shown.append(error))
    if is_interactive:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    stop = Interrupted("stopped: rank 1 waits")
    if is_interactive:
        sys.excepthook(Interrupted, stop, None)
    else:
        with pytest.raises(SystemExit) as end:
            sys.excepthook(Interrupted, stop, None)
        assert end.value.code == 130
    assert capsys.readouterr().err == "KeyboardInterrupt: stopped: rank 1 waits\n"
    assert shown == []

    hook = sys.excepthook
    Interrupted("a second one")
    assert sys.excepthook is hook
    other = (ValueError, ValueError("not ours"), None)
    sys.excepthook(*other)
    assert shown == [other]


def test_a_press_while_nobody_listens_to_ranks_is_the_same_error():
    stop = Interrupted("stopped: rank 1 waits", ["waits"], ["line 3"])
    assert as_interrupted(stop) is stop
    early = as_interrupted(KeyboardInterrupt())
    assert isinstance(early, Interrupted) and "started" in str(early)
    assert (
        str(as_interrupted(KeyboardInterrupt("the session has ended"))) == "the session has ended"
    )


SCRIPT = """
import os, signal, sys, threading

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.autograd" and sys.argv[1] == name:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presses())
import labkit
driver = os.getpid()

def sleeps(world):
    import time
    world.barrier()
    world.rank or os.kill(driver, signal.SIGINT)
    time.sleep(60)

labkit.run(sleeps, 2)
"""


# Interpreters of their own: how Python ends a script is what is asked.
@pytest.mark.parametrize("moment", ["torch.autograd", "in the run"])
def test_a_script_ends_with_status_130_and_without_a_traceback(moment, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, tmp_path / "script.py", moment],
        capture_output=True, text=True, timeout=600, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert ended.returncode == 130
    assert ended.stderr.startswith("KeyboardInterrupt: stopped")
    assert "Traceback" not in ended.stderr
    assert ("script.py, line" in ended.stderr) == (moment == "in the run")
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]
