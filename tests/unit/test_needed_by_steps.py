"""The fork server imports modules for the ranks, and leaves their state as it was."""

import importlib
import os
import platform
import re
import sys
from pathlib import Path

import pytest

from labkit import run
from tests.forked_programs import script

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


def test_no_rank_copies_pages_to_free_what_dynamos_imports_have_cached(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "from torch._dynamo import trace_rules as rules\n"
        "print(rules.get_torch_obj_rule_map.cache_info().currsize)"
    )
    assert script(program).output() == "0\n"


KERNELS_ONLY = ["IPython", "PIL", "ipykernel", "ipywidgets", "matplotlib"]


def test_a_rank_inherits_nothing_that_only_kernels_need():
    loaded = run(lambda world: [name for name in KERNELS_ONLY if name in sys.modules], 1).values
    assert loaded == [[]]


def inherited_in_large_pages(world):
    """In kB."""
    return int(re.search(r"AnonHugePages: *(\d+)", Path("/proc/self/smaps_rollup").read_text())[1])


@pytest.mark.skipif(
    sys.platform != "linux" or [*map(int, re.findall(r"\d+", platform.release())[:2])] < [6, 1],
    reason="needs Linux 6.1, which has MADV_COLLAPSE",
)
def test_a_fork_copies_few_entries_since_memory_is_in_large_pages():
    assert run(inherited_in_large_pages, 1).values[0] > 50_000
