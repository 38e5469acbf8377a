"""Kernels of notebooks that are forked: to start one takes 5 s of computing, mostly for imports.

    pytest --- fork server -+- the kernel of a notebook
                            +- the ranks of its runs

The tests' fork server has imported what a kernel and its ranks need, and has computed nothing.
nbval starts such kernels once this is imported. All others, as those of `make notebooks`, are
processes of their own.
"""

import gc
import multiprocessing
import os
import signal
import threading
from multiprocessing import forkserver

import nbval.kernel
import pytest
from jupyter_client.provisioning import local_provisioner

import labkit.launch  # noqa: F401  tells the server what ranks need

_CONTEXT = multiprocessing.get_context("forkserver")
_start_new_kernel = nbval.kernel.start_new_kernel


class ForkedKernel:
    """A kernel's process, with what jupyter_client uses of subprocess.Popen."""

    stdin = stdout = stderr = None

    def __init__(self, command, cwd, env, **others):
        leads_group, its_leads_group = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(
            target=_be_kernel, args=(command, cwd, env, its_leads_group), daemon=True
        )
        self._process.start()
        self.pid = self._process.pid
        leads_group.recv()  # before that, its group is the one of pytest, and will be killed

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self):
        self._process.join()
        return self._process.exitcode


def _be_kernel(command, cwd, env, leads_group):
    os.setsid()
    leads_group.send(True)
    threading.Thread(target=_end_with_pytest, daemon=True).start()
    # As in settle_in() of labkit/launch/rank.py.
    gc.freeze()
    multiprocessing.set_start_method(None, force=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # Ranks come from the server that this process comes from, and daemons may have no children.
    forkserver.ensure_running = forkserver._forkserver.ensure_running = lambda: None
    multiprocessing.current_process()._config["daemon"] = False
    os.chdir(cwd)
    os.environ.update(env)
    for output in (1, 2):  # what a kernel says as it starts
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance(command[command.index("ipykernel_launcher") + 1 :])


def _end_with_pytest():
    multiprocessing.parent_process().join()
    os._exit(1)


def _start_forked_kernel(*args, **settings):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_provisioner, "launch_kernel", ForkedKernel)
        return _start_new_kernel(*args, **settings)


nbval.kernel.start_new_kernel = _start_forked_kernel
