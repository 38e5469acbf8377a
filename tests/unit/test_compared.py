"""The calls of a process group are counted in one place, for all threads of a rank."""

import threading
import time
from types import SimpleNamespace

from labkit.comm.agreement.neighbours import Neighbours
from labkit.comm.calls import compared
from labkit.comm.calls.compared import CallsOfAProcess


def slowly_made(*args, **kwargs):
    """Other threads have the time to ask for them meanwhile."""
    time.sleep(0.05)
    return SimpleNamespace(name=args[4])


def test_threads_that_are_the_first_to_call_are_counted_together(tmp_path, monkeypatch):
    monkeypatch.setattr(compared, "ComparedCalls", slowly_made)
    neighbours = Neighbours(frozenset({0, 1}), tables=tmp_path, journals=tmp_path)
    calls, found = CallsOfAProcess(neighbours, 0), []
    process_group = object()

    def first_call():
        found.append(calls.of("torch.distributed", process_group, lambda: (0, 1)))

    threads = [threading.Thread(target=first_call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(map(id, found))) == 1
    assert found[0].name == "torch.distributed", "and it is not taken for one that was made anew"
