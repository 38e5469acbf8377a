"""How many collectives a process group was handed: counted in one place, for all threads."""

import threading
import time

import torch.distributed as dist

from labkit.comm import hand_over


class SlowlyMade(hand_over.HandOver):
    """Other threads have the time to ask for one meanwhile."""

    def __init__(self, gloo):
        time.sleep(0.05)
        super().__init__(gloo)


class Gloo:
    """As much of gloo's backend as is asked."""

    def _get_sequence_number_for_group(self):
        return 0


def test_threads_that_are_the_first_to_ask_get_the_same_count(monkeypatch):
    monkeypatch.setattr(hand_over, "HandOver", SlowlyMade)
    monkeypatch.setattr(hand_over, "_gloo_of", lambda process_group: Gloo())
    process_group, found = dist.ProcessGroup(0, 1), []
    threads = [
        threading.Thread(target=lambda: found.append(hand_over.to(process_group))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(map(id, found))) == 1
    hand_over.forget(process_group)
    assert hand_over.to(process_group) is not found[0], "of a destroyed one nothing is kept"
    hand_over.forget(process_group)
