"""A process that ends with its parent, also when the parent was quicker."""

import sys

import pytest

from tests.forked_programs import script

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux's own"),
]

ORPHAN = """
import os, sys, time, warnings
from labkit.launch.rank import end_with_parent
own = os.getpid()
warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on: torch has threads
if os.fork() == 0:
    while os.getppid() == own:  # its parent is gone before it asks
        time.sleep(0.01)
    end_with_parent(own)
    print("it lives on", flush=True)
"""


def test_a_process_whose_parent_is_gone_already_ends_too(tmp_path):
    path = tmp_path / "orphan.py"
    path.write_text(ORPHAN)
    assert script(path).output() == ""
