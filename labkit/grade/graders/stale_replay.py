"""What labkit's own parameter server writes down, when gradients arrive in a given order.

The server is the one that trains (data_parallel/parameter_server), with a model of one number. Only
the order of the arrivals is not left to clocks: the next gradient is handed over when all workers
that may go on have their new parameters.
"""

import threading
import time
from collections.abc import Sequence

import torch

from labkit.data_parallel.parameter_server import Mode
from labkit.data_parallel.parameter_server.server import Server
from labkit.optimizer import SGD

Update = tuple[int, int]
"""Staleness, and the server's version when the arrival has been dealt with."""


def replay(arrivals: Sequence[int], mode: Mode) -> list[Update]:
    """By arrival. The last one must leave no worker waiting: nobody would ever answer it."""
    held = dict.fromkeys(arrivals, 0)
    module = torch.nn.Linear(1, 1, bias=False)
    optimizer = SGD(module.parameters(), learning_rate=0.0)
    server = Server(module, optimizer, mode, len(held), num_steps=len(arrivals) + 1)
    waiting: dict[int, threading.Thread] = {}
    updates = []
    for number, worker in enumerate(arrivals, start=1):
        assert worker not in waiting, f"worker {worker} waits, and computes nothing"
        arriving = threading.Thread(
            target=server.arrive, args=(worker, held[worker], 0.0, torch.zeros(1)), daemon=True
        )
        arriving.start()
        waiting[worker] = arriving
        version = _version_after(server, number)
        updates.append((server.arrivals[-1].staleness, version))
        for other in [each for each in waiting if held[each] < version]:
            waiting.pop(other).join()
            held[other] = version
    assert not waiting, f"workers {sorted(waiting)} wait for a step that does not come"
    return updates


def _version_after(server: Server, num_arrivals: int) -> int:
    """The version when so many gradients have come, and what follows from the last has happened."""
    while len(server.arrivals) < num_arrivals:
        time.sleep(0)
    # An arrival is written down under the server's lock, which `current` gets after that.
    return server.current()[0]
