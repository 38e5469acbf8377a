"""The tests' JupyterLab: a kernel that still runs ends with it, and the working tree stays."""

import sys
import urllib.request
from pathlib import Path

import pytest
from lab_server import ROOT, LabServer

pytestmark = pytest.mark.alone


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks into /proc")
def test_a_server_takes_its_kernels_with_it(chromium, tmp_path):
    with LabServer(tmp_path) as server:
        request = urllib.request.Request(server.url("api/kernels"), data=b"{}")
        urllib.request.urlopen(request).close()
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in server.processes()]
        assert any(b"ipykernel" in command for command in commands)
    assert server.processes() == []


def test_a_lab_is_a_copy(chromium, tmp_path):
    server = LabServer(tmp_path)
    copied = server.folder / "exercises" / "catalog.toml"
    assert copied.read_bytes() == (ROOT / "exercises" / "catalog.toml").read_bytes()
    assert not copied.samefile(ROOT / "exercises" / "catalog.toml")
