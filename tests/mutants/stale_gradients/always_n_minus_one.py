"""Mutant: the staleness of the textbook.

outcome: "wrong"
diagnosis: "takes all workers for equally fast"
"""


def asynchronous(arrivals):
    others = len(set(arrivals)) - 1
    return [(others, version) for version, _ in enumerate(arrivals, start=1)]


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
