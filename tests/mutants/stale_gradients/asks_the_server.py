"""Mutant: lets labkit's parameter server count.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

import torch

from labkit.data_parallel.parameter_server import Asynchronous
from labkit.data_parallel.parameter_server.server import Server
from labkit.optimizer import SGD


def asynchronous(arrivals):
    module = torch.nn.Linear(1, 1, bias=False)
    server = Server(module, SGD(module.parameters(), 0.0), Asynchronous(), 9, 100)
    held, updates = dict.fromkeys(arrivals, 0), []
    for worker in arrivals:
        server.arrive(worker, held[worker], 0.0, torch.zeros(1))
        held[worker] = server.version
        updates.append((server.arrivals[-1].staleness, server.version))
    return updates


def first_k(arrivals, k):
    version, held, updates, waiting = 0, dict.fromkeys(arrivals, 0), [], []
    for worker in arrivals:
        staleness = version - held[worker]
        if staleness:
            held[worker] = version
        else:
            waiting.append(worker)
        if len(waiting) == k:
            version += 1
            held.update(dict.fromkeys(waiting, version))
            waiting.clear()
        updates.append((staleness, version))
    return updates


def timetable(seconds, num_updates):
    times = [
        (i * its, worker) for worker, its in seconds.items() for i in range(1, num_updates + 1)
    ]
    arrivals = [worker for _, worker in sorted(times)[:num_updates]]
    return [(worker, age) for worker, (age, _) in zip(arrivals, asynchronous(arrivals))]
