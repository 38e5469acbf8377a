"""Programs that are forked where a new interpreter would first compute 4 s to import torch.

    pytest --- fork server -+- the program
                            +- the ranks of its runs

The tests' fork server has imported what a program and its ranks need, and has computed nothing.
Unlike an interpreter, a program has no fork server of its own: its ranks outlive it where only
the end of that server would end them.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
from multiprocessing import forkserver

import labkit.launch  # noqa: F401  tells the server what ranks need
from labkit.interrupts import leave_group
from labkit.launch.rank import draw_own_random_numbers

CONTEXT = multiprocessing.get_context("forkserver")


class ForkedProgram:
    """A call in a new process, with what the tests use of subprocess.Popen.

    `stdout` has all that the process prints, stderr included.
    """

    stdin = stderr = None

    def __init__(self, program, *args, cwd=".", env=None):
        output, its_output = CONTEXT.Pipe(duplex=False)
        self._process = CONTEXT.Process(
            target=_run,
            args=(its_output, cwd, dict(os.environ if env is None else env), program, args),
            daemon=True,
        )
        self._process.start()
        its_output.close()
        self.pid = self._process.pid
        output.recv_bytes()  # before that, its group is the one of pytest, and will be killed
        self.stdout = open(os.dup(output.fileno()))
        output.close()

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self._process.exitcode

    def output(self, timeout=300):
        """All that it prints until it ends, within `timeout` seconds."""
        if self.wait(timeout) is None:
            self.kill()
        with self.stdout:
            return self.stdout.read()


def script(path, **variables):
    """`python PATH`, forked, with these environment variables added."""
    return ForkedProgram(_script, path, env={**os.environ, **variables})


def _script(path):
    runpy.run_path(str(path), run_name="__main__")


def _run(output, cwd, env, program, args):
    leave_group()
    output.send_bytes(b"leads a group")
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    output.close()
    sys.stdout = open(1, "w", buffering=1, closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    threading.Thread(target=_end_with_pytest, daemon=True).start()
    # As in prepare_process() of labkit/launch/rank.py.
    gc.freeze()
    multiprocessing.set_start_method(None, force=True)
    tempfile.tempdir = None
    draw_own_random_numbers()
    # Ranks come from the server that this process comes from, and daemons may have no children.
    forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
    multiprocessing.current_process()._config["daemon"] = False
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    try:
        program(*args)
    finally:
        atexit._run_exitfuncs()  # as an interpreter, and other than multiprocessing's processes


def _end_with_pytest():
    multiprocessing.parent_process().join()
    os._exit(1)
