"""Mutant: lets each round wait for the slowest.

outcome: "wrong"
diagnosis: "lets the workers take turns"
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
    order = sorted(seconds, key=seconds.get)
    arrivals = [order[i % len(order)] for i in range(num_updates)]
    return [(worker, age) for worker, (age, _) in zip(arrivals, asynchronous(arrivals))]
