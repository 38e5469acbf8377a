"""Kernels of notebooks that are forked: to start one takes 5 s of computing, mostly for imports.

nbval starts such kernels once this is imported. All others, as those of `make notebooks`, are
processes of their own. Each has sockets that are files, and so no port that another can take.

    fork server -+- ranks
                 +- server of kernels, which imports what only they need -- kernels

Were the ranks' server to import that, each of thousands of ranks would take 6 ms more to start: a
fork copies the page tables of it.
"""

import functools
import importlib
import os
import socket
import tempfile
from multiprocessing import forkserver

import nbval.kernel
import pytest
from jupyter_client.provisioning import local_provisioner

from scripts.notebooks import local_sockets
from tests.forked_programs import CONTEXT, ForkedProgram

NEEDED = ["ipykernel.kernelapp", "ipywidgets", "matplotlib.backends.backend_agg", "PIL.Image"]
NEEDED += ["labkit.calc", "labkit.notebook"]  # imported by all notebooks: 350 modules

start_new_kernel = nbval.kernel.start_new_kernel


class ForkedKernel(ForkedProgram):
    """A forked kernel instead of the process that jupyter_client starts."""

    def __init__(self, command, env, cwd=".", **others):
        words = command[command.index("ipykernel_launcher") + 1 :]
        address = server_of_kernels()[0]
        ranks = forkserver._forkserver._forkserver_address
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forkserver._forkserver, "_forkserver_address", address)
            super().__init__(_be_kernel, words, ranks, cwd=cwd, env=env)
        self.stdout.close()
        self.stdout = None


@functools.cache
def server_of_kernels():
    """Its address, itself, and the pipe whose end here keeps it alive."""
    address = os.path.join(tempfile.mkdtemp(prefix="k"), "s")
    alive, its_alive = CONTEXT.Pipe(duplex=False)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        process = CONTEXT.Process(target=_be_server, args=(listener, alive), daemon=True)
        process.start()
    alive.close()
    return address, process, its_alive


def _be_server(listener, alive):
    for name in NEEDED:
        importlib.import_module(name)
    forkserver.main(listener.detach(), alive.fileno(), [])


def _be_kernel(words, address_of_ranks):
    forkserver._forkserver._forkserver_address = address_of_ranks
    for output in (1, 2):  # drop the output of a kernel's start
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    from ipykernel.kernelapp import IPKernelApp

    IPKernelApp.launch_instance(words)


def start_forked_kernel(*args, **settings):
    """nbval's `start_new_kernel`, of a ForkedKernel."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_provisioner, "launch_kernel", ForkedKernel)
        return start_new_kernel(*args, **settings)


class LocalKernelManager(nbval.kernel.KernelManager):
    """nbval's, by way of local sockets."""

    def __init__(self, **traits):
        super().__init__(**local_sockets(), **traits)


nbval.kernel.KernelManager = LocalKernelManager
nbval.kernel.start_new_kernel = start_forked_kernel
