"""The tests' JupyterLab: a kernel that still runs ends with it, and the working tree stays."""

import subprocess
import sys
import urllib.request
from pathlib import Path

import lab_server
import pytest
from lab_server import ROOT, LabServer

pytestmark = pytest.mark.clock


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks into /proc")
def test_a_server_takes_its_kernels_with_it(chromium, tmp_path):
    with LabServer(tmp_path) as server:
        request = urllib.request.Request(server.url("api/kernels"), data=b"{}")
        urllib.request.urlopen(request).close()
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in server.processes()]
        assert any(b"ipykernel" in command for command in commands)
    assert server.processes() == []


def test_what_was_left_is_told_also_when_it_has_ended_meanwhile(tmp_path, monkeypatch):
    server = LabServer(tmp_path)
    server._log.write_text("its last words")
    server._process = subprocess.Popen([sys.executable, "-c", ""])
    server._process.wait()
    monkeypatch.setattr(lab_server, "END_S", 0.1)
    monkeypatch.setattr(server, "processes", lambda: [server._process.pid])
    with pytest.raises(RuntimeError, match="left processes .*\n?its last words"):
        server.close()


def test_a_lab_is_a_copy(chromium, tmp_path):
    server = LabServer(tmp_path)
    copied = server.folder / "exercises" / "catalog.toml"
    assert copied.read_bytes() == (ROOT / "exercises" / "catalog.toml").read_bytes()
    assert not copied.samefile(ROOT / "exercises" / "catalog.toml")
