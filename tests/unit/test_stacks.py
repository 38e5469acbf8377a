"""Frames that are read from a rank's stack, as faulthandler has written it."""

import faulthandler
import linecache
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

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


def line_of(thread):
    frame = sys._current_frames()[thread.ident]
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


MAIN = """Thread 0x1 (most recent call first):
  File "/lib/python3.11/multiprocessing/connection.py", line 395 in _recv
  File "/lib/python3.11/multiprocessing/connection.py", line 250 in recv
  File "/lab/labkit/launch/session/in_rank.py", line 76 in {}
  File "/lab/labkit/launch/session/in_rank.py", line 60 in session_main
"""


@pytest.mark.parametrize(("function", "is_held"), [("session_main", True), ("perform", False)])
def test_between_two_cells_a_rank_with_an_idle_thread_of_a_pool_posts_nothing(
    tmp_path, function, is_held
):
    """Such as the communication thread of a wrapped model, which lives as long as its group."""
    path = tmp_path / "rank-0.stack"
    with ThreadPoolExecutor(1) as pool, open(path, "w+") as file:
        pool.submit(int).result()
        (worker,) = pool._threads
        while "get(block=True)" not in line_of(worker):
            time.sleep(0.01)
        faulthandler.dump_traceback(file)
        file.seek(0)
        threads = file.read().split("\n\n")
    idle = next(each for each in threads if "in _worker" in each.splitlines()[1])
    path.write_text(f"{idle}\n\n{MAIN.format(function)}")
    found = stacks.read(path)
    assert (found.num_other_threads, found.is_held) == (1, is_held)
