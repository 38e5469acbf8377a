import subprocess
import sys

import torch


def test_tests_and_what_they_start_compute_on_one_thread():
    """Two threads in each of several tests spin for each other's core (tests/conftest.py)."""
    program = "import torch; print(torch.get_num_threads())"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (torch.get_num_threads(), child.stdout.strip()) == (1, "1")
