"""Kernels of notebooks that are forked: to start one takes 5 s of computing, mostly for imports.

nbval starts such kernels once this is imported. All others, as those of `make notebooks`, are
processes of their own. Each has sockets that are files, and so no port that another can take.
"""

import os

import nbval.kernel
import pytest
from jupyter_client.provisioning import local_provisioner

from scripts.notebooks import local_sockets
from tests.forked_programs import ForkedProgram

start_new_kernel = nbval.kernel.start_new_kernel


class ForkedKernel(ForkedProgram):
    """What jupyter_client starts, forked."""

    def __init__(self, command, env, cwd=".", **others):
        words = command[command.index("ipykernel_launcher") + 1 :]
        super().__init__(_be_kernel, words, cwd=cwd, env=env)
        self.stdout.close()
        self.stdout = None


def _be_kernel(words):
    for output in (1, 2):  # what a kernel says as it starts
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
