"""What the fork server imports for ranks, and leaves as it was."""

import importlib
import os
import sys
from pathlib import Path

from labkit import run

INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


def imports_again(world, folder):
    assert "torch._dynamo" in sys.modules
    assert INDUCTOR not in os.environ
    os.environ[INDUCTOR] = folder
    importlib.reload(sys.modules["labkit.launch.needed_by_steps"])
    return os.environ[INDUCTOR], Path(folder).is_dir()


def test_dynamo_is_loaded_and_a_readers_own_cache_of_compiled_code_stays(tmp_path, monkeypatch):
    monkeypatch.delenv(INDUCTOR, raising=False)
    assert run(imports_again, 1, [str(tmp_path)]).values == [(str(tmp_path), True)]
