"""Two hosts on one machine: network namespaces, each with a name of its own, and a cable.

left 10.231.87.1 ---- veth pair ---- 10.231.87.2 right
"""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from agent import run_agent

from labkit.hosts import hosted_rank, records
from tests.forked_programs import ForkedProgram

ROOT = Path(__file__).parents[2]
ADDRESSES = {"left": "10.231.87.1", "right": "10.231.87.2"}
CABLE = "cable0"  # each host's end of the cable has this name
PORT = 29511
_CLONE_NEWNS, _CLONE_NEWUTS, _CLONE_NEWNET = 0x20000, 0x4000000, 0x40000000  # from linux/sched.h


class TwoHosts:
    """Made with `with`, and gone after it, with every process in them."""

    def __init__(self):
        self.namespaces = {host: f"labkit-{host}-{os.getpid()}" for host in ADDRESSES}
        self.folder = tempfile.TemporaryDirectory()
        self.names = Path(self.folder.name) / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{a} {host}" for host, a in ADDRESSES.items())]
        self.names.write_text("\n".join(lines) + "\n")

    def __enter__(self):
        try:
            for namespace in self.namespaces.values():
                ip("netns", "add", namespace)
            left, right = self.namespaces.values()
            ip(*f"link add {CABLE} netns {left} type veth peer name {CABLE} netns {right}".split())
            for host, namespace in self.namespaces.items():
                for words in (
                    f"addr add {ADDRESSES[host]}/24 dev {CABLE}",
                    f"link set {CABLE} up",
                    "link set lo up",
                ):
                    ip("-n", namespace, *words.split())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *of_an_error):
        self.close()

    def torchrun(self, host, options, *program, **environment):
        """Start torchrun on a host; a ForkedProgram."""
        words = [
            *("--rdzv-backend=c10d", f"--rdzv-endpoint=left:{PORT}", "--rdzv-id=two-hosts"),
            *options.split(),
            *("-m", "labkit.launch.payload"),
            *map(str, program),
        ]
        variables = {**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", **environment}
        of_the_host = (host, self.namespaces[host], str(self.names))
        return ForkedProgram(_run_agent_on, *of_the_host, words, cwd=ROOT, env=variables)

    def processes(self, host):
        listing = ip("netns", "pids", self.namespaces[host])
        return [int(line) for line in listing.split()]

    def kill(self, host):
        """End all that runs on a host, at once: the agent first, lest it tells anybody."""
        for process in self.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def cut_the_cable(self):
        """From now on no packet arrives, and none says so: as if the other host lost its power."""
        ip("-n", self.namespaces["right"], "link", "set", CABLE, "down")

    def close(self):
        for host, namespace in self.namespaces.items():
            try:
                deadline = time.monotonic() + 5
                while self.processes(host) and time.monotonic() < deadline:
                    self.kill(host)
                    time.sleep(0.05)
                ip("netns", "del", namespace)
            except subprocess.CalledProcessError:
                pass  # it was never made
        self.folder.cleanup()


def _run_agent_on(host, namespace, names, words):
    """Be on a host: in its network, with its name, and with the addresses of both.

    The kernel answers a probe at once, also on a busy machine: half a second is patience enough.
    """
    hosted_rank._EVERY_S = hosted_rank._WAIT_S = records._PROBE_S = 0.5
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as network:
        failed = libc.setns(network.fileno(), _CLONE_NEWNET)
    if failed or libc.unshare(_CLONE_NEWNS | _CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "no namespace to be in")
    socket.sethostname(host)
    for options in (["--make-rprivate", "/"], ["--bind", names, "/etc/hosts"]):
        subprocess.run(["mount", *options], check=True)
    run_agent(words, "fork")


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=True)
    return done.stdout


def why_not():
    """Why two hosts cannot be made here, or None."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's own"
    missing = [tool for tool in ("ip", "tc", "mount") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found; apt-get install iproute2 mount"
    try:
        with TwoHosts():
            return None
    except subprocess.CalledProcessError as error:
        return f"namespaces cannot be made: {error.stderr.strip()} (needs root: CAP_SYS_ADMIN)"
