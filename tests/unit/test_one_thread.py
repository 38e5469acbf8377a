import os

import torch


def test_tests_and_what_they_start_compute_on_one_thread():
    """Two threads in each of several tests spin for each other's core (tests/conftest.py)."""
    assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (1, "1")
