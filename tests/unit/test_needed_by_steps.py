"""What the fork server imports for ranks, and leaves as it was."""

import os
import subprocess
import sys

SHOW = """
import os, sys
import labkit.launch.ranks.needed_by_steps
assert "torch._dynamo" in sys.modules
print(os.environ.get("TORCHINDUCTOR_CACHE_DIR"))
"""


def imported(**variables):
    ours = {name: value for name, value in os.environ.items() if "INDUCTOR" not in name}
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env={**ours, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_no_folder_is_left_by_an_import(tmp_path):
    assert imported(TMPDIR=str(tmp_path)) == "None"
    assert not list(tmp_path.iterdir())


def test_a_readers_own_cache_of_compiled_code_stays(tmp_path):
    assert imported(TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "mine")) == f"{tmp_path}/mine"
