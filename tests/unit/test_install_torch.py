"""Which build of torch `make lab` installs: by GPU, by what the CPU build's index answers."""

import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install_torch.py"
TORCH = "torch==2.13.0"
BY_PIP = ["--constraint", "constraints.txt", TORCH]


CLOSED = threading.Event()


class Index(http.server.BaseHTTPRequestHandler):
    """Offers one version of torch for the CPU; at /slow/ it does not answer while a test runs."""

    def do_GET(self):
        if self.path.startswith("/slow/"):
            CLOSED.wait()
        page = b'<a href="torch-2.13.0%2Bcpu-cp312-cp312-manylinux_2_28_x86_64.whl">torch</a>'
        self.send_response(200 if self.path.endswith("/torch/") else 404)
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    CLOSED.set()
    server.shutdown()


@pytest.fixture
def machine(tmp_path):
    """Installs on a pretended machine: what pip was called with, what was said and remembered."""
    (tmp_path / "pip.py").write_text("import sys\nprint('pip:', *sys.argv[1:], sep='\\n')\n")
    remembered = tmp_path / ".torch-index"

    def install(*arguments, gpu=None, system="Linux", torch=TORCH, within_s=60.0):
        """gpu: the exit status of nvidia-smi; None: there is none."""
        if gpu is not None:
            (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\nexit {gpu}\n")
            (tmp_path / "nvidia-smi").chmod(0o755)
        pretence = (
            f"import sys, platform; platform.system = lambda: {system!r}\n"
            f"sys.argv[0] = {str(SCRIPT)!r}; sys.path[0] = {str(SCRIPT.parents[1])!r}\n"
            "from scripts import install_torch\n"
            f"install_torch._ANSWERS_WITHIN_S = {within_s}\n"
            "sys.exit(install_torch.main())"
        )
        command = [sys.executable, "-c", pretence, torch, str(remembered), *arguments]
        environment = {"PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path}{os.pathsep}"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        said, _, pip = done.stdout.partition("pip:\n")
        *options, last = pip.split()
        assert options[:2] == ["--disable-pip-version-check", "install"]
        return [*options[2:], last], said, remembered.read_text().strip()

    return install


@pytest.mark.parametrize("gpu", [None, 9], ids=["no nvidia-smi", "it fails"])
def test_without_a_gpu_the_cpu_build_is_taken_named_and_remembered(machine, server, gpu):
    pip, said, remembered = machine("--cpu-index", server, gpu=gpu)
    assert pip == ["--index-url", server, TORCH]
    assert server in said and "TORCH_INDEX=" in said
    assert remembered == server
    # Later calls take it from there without asking again.
    assert machine("--cpu-index", "")[0] == pip


def test_with_a_gpu_pip_chooses_without_a_word(machine, server):
    assert machine("--cpu-index", server, gpu=0) == (BY_PIP, "", "")


def test_on_other_systems_pip_chooses_without_a_word(machine, server):
    assert machine("--cpu-index", server, system="Darwin") == (BY_PIP, "", "")


def test_a_named_index_wins_and_no_other_is_asked(machine, server):
    pip, said, remembered = machine("--index", "https://example.org/x", "--cpu-index", server)
    assert pip == ["--index-url", "https://example.org/x", TORCH]
    assert (said, remembered) == ("", "https://example.org/x")


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("/slow/", {"within_s": 0.2}),
        ("/nothing", {"torch": "torch==2.13.1"}),
        (":1:2", {}),
    ],
    ids=["too late", "another version", "no address"],
)
def test_where_the_index_has_no_answer_pip_chooses_and_it_is_said(machine, server, path, options):
    pip, said, remembered = machine("--cpu-index", server + path, **options)
    assert pip[:2] == BY_PIP[:2]
    assert f"{server}{path} did not offer" in said
    assert remembered == ""


def test_what_pip_chose_once_is_not_chosen_again(machine, server):
    machine("--cpu-index", "")
    assert machine("--cpu-index", server) == (BY_PIP, "", "")
