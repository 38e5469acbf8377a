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

    before = len(sys._current_frames()) - 1  # threading does not know all, as those of pytest-xdist
    found = rank_main(look, num_threads)
    assert found.is_known and found.num_other_threads == num_threads + before
