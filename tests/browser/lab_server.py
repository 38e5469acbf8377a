"""A JupyterLab of the tests' own: a copy of the course, a home and a port that nobody else has.

It is forked, and so are its kernels: see forked_programs.py.
"""

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
from jupyter_client.provisioning import local_provisioner

from labkit.cli import lab
from labkit.cli.start import start
from tests.forked_kernels import ForkedKernel
from tests.forked_programs import ForkedProgram

ROOT = Path(__file__).parents[2]
START_S, END_S = 120, 60
OVERRIDES = lab.SETTINGS / "labconfig" / "default_setting_overrides.json"
SETTINGS = json.loads(OVERRIDES.read_text()) | {
    # All cells are in the page, also those that are not on the screen.
    "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
}


class LabServer:
    """Made with `with`, and gone after it, with every kernel. `folder` is the lab's copy."""

    def __init__(self, folder):
        self.folder, self.home = folder / "lab", folder / "home"
        self.token = secrets.token_hex(16)
        self.port = free_port()
        self._log = folder / "server.log"
        self._runtime = tempfile.mkdtemp(prefix="r")  # short: of kernels' sockets
        start(self.folder)
        # This tree's stylesheet, whatever the environment has installed.
        shutil.copytree(ROOT / "labextension", self.home / "data" / "labextensions" / "labkit")
        for plugin, settings in SETTINGS.items():
            name = plugin.replace(":", "/")
            path = self.home / f"config/lab/user-settings/{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(settings))

    def __enter__(self):
        options = {
            "ServerApp.root_dir": self.folder,
            "ServerApp.ip": "127.0.0.1",
            "ServerApp.port": self.port,
            "ServerApp.port_retries": 0,
            "KernelManager.transport": "ipc",  # like `labkit lab`
            "IdentityProvider.token": self.token,
            "LabApp.expose_app_in_browser": True,  # so that a test can ask what the lab is doing
        }
        words = ["--no-browser", "--allow-root", *(f"--{k}={v}" for k, v in options.items())]
        self._process = ForkedProgram(
            _be_jupyterlab, self._log, words, cwd=self.folder, env=self._environment()
        )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *of_an_error):
        self.close()

    def url(self, path, *options):
        """Return the address of a page or of the REST API."""
        query = "&".join([f"token={self.token}", *options])
        return f"http://127.0.0.1:{self.port}/{path}?{query}"

    def write_notebook(self, name, sources):
        """One of the tests' own, in notebooks/; sources: of its cells, by id."""
        cells = [nbformat.v4.new_code_cell(source, id=cell) for cell, source in sources.items()]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
        nbformat.write(notebook, self.folder / "notebooks" / name)

    def end_kernels(self):
        """End the kernels of all notebooks; the server goes on."""
        with urllib.request.urlopen(self.url("api/sessions")) as reply:
            sessions = json.load(reply)
        for session in sessions:
            path = self.url(f"api/sessions/{session['id']}")
            urllib.request.urlopen(urllib.request.Request(path, method="DELETE")).close()

    def log(self):
        return self._log.read_text(errors="replace")

    def close(self):
        """End the server, which ends its kernels. RuntimeError where a process outlives it."""
        self._process.send_signal(signal.SIGTERM)
        if self._process.wait(END_S) is None:
            self._process.kill()
        deadline = time.monotonic() + END_S
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(pid, signal.SIGKILL)
        if left:
            raise RuntimeError(f"JupyterLab left processes {left}; it said:\n{self.log()[-2000:]}")

    def processes(self):
        """Return the processes of the server, its kernels and their ranks (Linux only)."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if path.readlink().is_relative_to(self.folder):
                    found.append(int(path.parent.name))
        return found

    def _environment(self):
        own = {
            "LABKIT_HOME": self.home,
            "IPYTHONDIR": self.home / "ipython",
            "JUPYTER_CONFIG_DIR": self.home / "config",
            "JUPYTER_DATA_DIR": self.home / "data",
            "JUPYTER_RUNTIME_DIR": self._runtime,
            "JUPYTER_PREFER_ENV_PATH": 1,
            "PYTHONPATH": ROOT,
        }
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("JUPYTER")}
        return inherited | {name: str(value) for name, value in own.items()}

    def _wait_until_it_answers(self):
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(self.url("api/status"), timeout=5):
                    return
            except (urllib.error.URLError, OSError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"JupyterLab does not answer:\n{self.log()}") from None
            time.sleep(0.1)


def _be_jupyterlab(log, words):
    with log.open("w") as output:
        for number in (1, 2):
            os.dup2(output.fileno(), number)
    from jupyterlab import labapp  # it looks for its settings when it is imported

    local_provisioner.launch_kernel = ForkedKernel
    sys.argv = ["jupyter-lab", *words]
    labapp.main()


def free_port():
    """One that no process is given by chance: from below those of connections (32768 or 49152)."""
    while True:
        port = random.SystemRandom().randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
