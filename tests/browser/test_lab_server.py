"""The tests' JupyterLab: a kernel that still runs ends with it, and the working tree stays."""

import subprocess
import sys
import urllib.request

import pytest

from . import lab_server
from .lab_server import ROOT, LabServer


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it looks into /proc")
def test_kernels_are_among_the_processes_that_must_end_with_the_server(server):
    """Kernels that outlive the server are an error of the last test here, found by its `close`."""
    before = server.processes()
    request = urllib.request.Request(server.url("api/kernels"), data=b"{}")
    urllib.request.urlopen(request).close()
    assert set(server.processes()) - set(before)  # others may have ended meanwhile


def test_what_was_left_is_reported_also_when_it_has_ended_meanwhile(tmp_path, monkeypatch):
    server = LabServer(tmp_path)
    server._log.write_text("its last words")
    server._process = subprocess.Popen([sys.executable, "-c", ""])
    server._process.wait()
    monkeypatch.setattr(lab_server, "END_S", 0.1)
    monkeypatch.setattr(server, "processes", lambda: [server._process.pid])
    with pytest.raises(RuntimeError, match="left processes .*\n?its last words"):
        server.close()


def test_a_lab_is_a_copy(server):
    copied, original = (each / "solutions" / "zero1_step.py" for each in (server.folder, ROOT))
    assert copied.read_bytes() == original.read_bytes() and not copied.samefile(original)
