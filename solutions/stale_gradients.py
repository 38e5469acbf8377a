"""Predict the staleness of gradients.

An interviewer asks: "One process has the parameters; workers fetch them, compute a gradient and
send it back, each at its own pace. The server steps with every gradient as it comes. How old are
the parameters that a gradient belongs to? What if one worker is ten times slower? And if the server
waits for the first k gradients of each step instead?"

The server counts its steps: its version is 0 at first, and every step makes it one more. At the
beginning all workers get the parameters of version 0. A gradient's staleness is the number of steps
that the server has made between sending a worker its parameters and receiving the gradient that
the worker computed with them.

    asynchronous  the server makes a step with every gradient, and then sends its worker the new
                  parameters
    first k of n  the server collects k gradients of its newest parameters, makes one step with
                  their mean, and sends those k workers, who have waited, the new parameters. A
                  gradient of older parameters is thrown away, and its worker gets the newest ones
                  at once

Nothing takes time but computing. Workers are numbered from 1, as ranks are beside a server that is
rank 0. Write three functions.

    asynchronous(arrivals)           arrivals  the workers in the order in which their gradients
                                     arrive, such as [1, 2, 1, 3]: one entry for each gradient
                                     returns   for each arrival (staleness, version): version as it
                                     is when that arrival has been dealt with
    first_k(arrivals, k)             the same, with a server that waits for the first k. (A worker
                                     that waits is not in arrivals before it has new parameters.)
    timetable(seconds, num_updates)  seconds   worker -> how long it computes a gradient, such as
                                     {1: 0.1, 2: 0.35}; all begin at the same time, and the server
                                     is asynchronous
                                     returns   for each of the first num_updates gradients that
                                     arrive (worker, staleness). No two arrive at the same time

Contract
    returns  lists of pairs of whole numbers
    never    labkit.data_parallel. Each check replays the arrivals on labkit's own parameter server
             and compares your answers with what that writes down. (In a notebook you may run it.)
"""


def asynchronous(arrivals: list[int]) -> list[tuple[int, int]]:
    """(staleness, version after it) of each arrival, where the server steps with every one."""
    ### BEGIN SOLUTION
    held, updates = dict.fromkeys(arrivals, 0), []
    for version, worker in enumerate(arrivals):
        updates.append((version - held[worker], version + 1))
        held[worker] = version + 1  # with its own gradient in it: that is no step in between
    return updates
    ### END SOLUTION


def first_k(arrivals: list[int], k: int) -> list[tuple[int, int]]:
    """(staleness, version after it) of each arrival, where k new gradients make a step."""
    ### BEGIN SOLUTION
    version, held, updates = 0, dict.fromkeys(arrivals, 0), []
    waiting: list[int] = []
    for worker in arrivals:
        staleness = version - held[worker]
        if staleness:
            held[worker] = version  # too late: it counts for nothing
        else:
            waiting.append(worker)
        if len(waiting) == k:
            version += 1
            held.update(dict.fromkeys(waiting, version))
            waiting.clear()
        updates.append((staleness, version))
    return updates
    ### END SOLUTION


def timetable(seconds: dict[int, float], num_updates: int) -> list[tuple[int, int]]:
    """(worker, staleness) of the first `num_updates` gradients, each worker at its own pace."""
    ### BEGIN SOLUTION
    # Nobody waits for anybody: a worker's gradients come at 1, 2, 3, ... times its seconds.
    times = [
        (i * its, worker) for worker, its in seconds.items() for i in range(1, num_updates + 1)
    ]
    arrivals = [worker for _, worker in sorted(times)[:num_updates]]
    return [(worker, age) for worker, (age, _) in zip(arrivals, asynchronous(arrivals))]
    ### END SOLUTION
