"""What is read of a rank's stack, as faulthandler has written it."""

import faulthandler
import sys
import threading

import pytest

from labkit.doctor import stacks


def rank_main(look, num_threads):
    """Named as what runs a rank's function, beside threads that wait for their end."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    try:
        return look()
    finally:
        end.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("num_threads", [0, 1, 2])
@pytest.mark.parametrize("num_answers", [1, 2, 3])
def test_a_rank_that_has_answered_twice_has_no_more_threads(tmp_path, num_threads, num_answers):
    path = tmp_path / "rank-0.stack"

    def look():
        with open(path, "w") as file:
            for _ in range(num_answers):
                faulthandler.dump_traceback(file)
        return stacks.read(path)

    before = len(sys._current_frames()) - 1  # threading does not know all, as pytest-xdist's
    found = rank_main(look, num_threads)
    assert found.is_known and found.num_other_threads == num_threads + before


def test_a_thread_without_a_frame_of_python_does_not_communicate(tmp_path):
    """Autograd keeps one for each GPU, from the first backward pass on."""
    path = tmp_path / "rank-0.stack"

    def look():
        with open(path, "w") as file:
            file.write("Thread 0x1 (most recent call first):\n  <no Python frame>\n\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=False)
        return stacks.read(path)

    assert rank_main(look, 0).num_other_threads == 0
