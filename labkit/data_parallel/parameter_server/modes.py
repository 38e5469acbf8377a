"""When a parameter server makes a step.

    Synchronous()       with the gradients of all workers, who wait for it
    Synchronous(k)      with the first k; who comes later has worked in vain, and is not waited for
    Asynchronous()      with every gradient, as it comes; nobody waits

A gradient's staleness is the number of steps that the server has made since the worker got its
parameters. Synchronous ones have none. Of n workers that are equally fast, asynchronous ones have
n - 1: each of the others has made the server step once meanwhile.
Papers: Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014;
Chen et al., "Revisiting distributed synchronous SGD", arXiv:1604.00981 (the first k of n: the other
n - k are its backup workers).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Synchronous:
    """Steps with the mean of `first` gradients of the newest parameters; None: of all workers."""

    first: int | None = None

    def __post_init__(self) -> None:
        if self.first is not None and (type(self.first) is not int or self.first < 1):
            raise ValueError(f"first={self.first!r}: gradients are counted, from 1; None means all")

    def num_gradients(self, num_workers: int) -> int:
        """How many gradients a step takes. ValueError unless there are that many workers."""
        first = num_workers if self.first is None else self.first
        if not 1 <= first <= num_workers:
            raise ValueError(
                f"first={first} of {num_workers} workers: a step takes 1 to {num_workers} gradients"
            )
        return first


@dataclass(frozen=True)
class Asynchronous:
    """Steps with every gradient, whatever the age of the parameters that it belongs to."""


Mode = Synchronous | Asynchronous
SYNCHRONOUS = Synchronous()
