"""Mutant: takes the first k, however old they are.

outcome: "wrong"
diagnosis: "steps with late gradients, too"
"""


def asynchronous(arrivals):
    held, updates = dict.fromkeys(arrivals, 0), []
    for version, worker in enumerate(arrivals):
        updates.append((version - held[worker], version + 1))
        held[worker] = version + 1
    return updates


def first_k(arrivals, k):
    version, held, updates, waiting = 0, dict.fromkeys(arrivals, 0), [], []
    for worker in arrivals:
        staleness = version - held[worker]
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
