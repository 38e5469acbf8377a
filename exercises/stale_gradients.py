"""Predict the staleness of gradients.

An interviewer asks: "One process has the parameters. Workers fetch them, compute a gradient and
send it back, each at its own pace. The server makes a step with every gradient as it arrives. How
old are the parameters that a gradient belongs to? What if one worker is ten times slower? And if
the server waits for the first k gradients of each step instead?"

The version of the parameters is the number of steps that the server has made. At the beginning
every worker gets version 0. The staleness of a gradient is the number of steps that the server made
after it sent this worker its parameters and before the gradient arrived. There are two kinds of
server:

    asynchronous  The server makes a step with every gradient. Then it sends the new parameters to
                  the worker of that gradient, and to no other.
    first k of n  A gradient of staleness 0 is collected, and its worker waits. When k are
                  collected, the server makes one step with their mean, and sends the new parameters
                  to those k workers. A gradient of staleness 1 or more is late. The server does not
                  use it, and sends its worker the newest parameters at once.

Only computing takes time; messages and steps take none. Workers have numbers from 1. Write three
functions.

    asynchronous(arrivals)           arrivals: the workers in the order in which their gradients
                                     arrive, such as [1, 2, 1, 3]; one entry per gradient
                                     returns for each arrival (staleness, version): the version
                                     after the server has made its step
    first_k(arrivals, k)             the same for a server that waits for the first k. The version
                                     is the one after the arrival, with the step if it made one. A
                                     worker that waits does not appear in arrivals
    timetable(seconds, num_updates)  seconds: worker -> how long it computes a gradient, such as
                                     {1: 0.1, 2: 0.35}. All workers start at time 0; the server is
                                     asynchronous
                                     returns (worker, staleness) for each of the first num_updates
                                     gradients that arrive. No two arrive at the same time

All three return lists of pairs of whole numbers. labkit.data_parallel has a parameter server that
writes down the same numbers. You may run it in a notebook, but your functions may not call it.
"""


def asynchronous(arrivals: list[int]) -> list[tuple[int, int]]:
    """Return (staleness, version afterwards) of each arrival; the server steps with each."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def first_k(arrivals: list[int], k: int) -> list[tuple[int, int]]:
    """Return (staleness, version afterwards) of each arrival; k fresh gradients make a step."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def timetable(seconds: dict[int, float], num_updates: int) -> list[tuple[int, int]]:
    """Return (worker, staleness) of the first gradients; each worker has its own pace."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
