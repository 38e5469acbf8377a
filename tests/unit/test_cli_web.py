"""labkit web: files of a built site by their MIME types, on this machine only."""

import threading
import urllib.error
import urllib.request

import pytest

from labkit.arguments import UserError
from labkit.cli.web import server


@pytest.fixture
def site(tmp_path):
    for name in ("index.html", "live.mjs", "pyodide.asm.wasm", "book.css"):
        (tmp_path / name).write_text("hello")
    return tmp_path


@pytest.fixture
def serving(site):
    with server(site, 0) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def fetch(serving, path):
    return urllib.request.urlopen(f"http://127.0.0.1:{serving.server_port}/{path}")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("", "text/html"),
        ("live.mjs", "text/javascript"),
        ("pyodide.asm.wasm", "application/wasm"),
        ("book.css", "text/css"),
    ],
)
def test_a_file_comes_with_the_type_that_a_browser_needs(serving, path, kind):
    with fetch(serving, path) as answer:
        assert answer.headers["Content-Type"] == kind and answer.read() == b"hello"


def test_only_this_machine_is_served_and_only_the_folder(serving, site):
    (site.parent / "secret").write_text("no")
    assert serving.server_address[0] == "127.0.0.1"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetch(serving, "../secret")


def test_without_a_site_the_error_says_how_to_build_one(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no index.html.*name the folder"):
        server(tmp_path, 0)
    monkeypatch.setattr("labkit.cli.web.find_packages_workspace", lambda: Clone(tmp_path))
    with pytest.raises(UserError, match="build/book/html has no index.html.*`make book`"):
        server(None, 0)


class Clone:
    def __init__(self, root):
        self.root = root


def test_a_port_in_use_is_named_with_the_way_out(serving, site):
    with pytest.raises(UserError, match=f"port {serving.server_port} .*--port 0"):
        server(site, serving.server_port)


@pytest.mark.parametrize(
    ("error", "is_said"),
    [(ConnectionResetError(), False), (BrokenPipeError(), False), (ValueError("x"), True)],
)
def test_a_browser_that_leaves_a_page_is_no_error(serving, capsys, error, is_said):
    try:
        raise error
    except (OSError, ValueError):
        serving.handle_error(None, ("127.0.0.1", 1))
    assert bool(capsys.readouterr().err) == is_said
