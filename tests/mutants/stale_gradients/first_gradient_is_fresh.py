"""Mutant: whoever has not sent anything yet has stale parameters of age 0.

outcome: "wrong"
diagnosis: "ignores steps before a worker's first gradient"
"""


def asynchronous(arrivals):
    held, updates = {}, []
    for version, worker in enumerate(arrivals):
        updates.append((version - held.get(worker, version), version + 1))
        held[worker] = version + 1
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
