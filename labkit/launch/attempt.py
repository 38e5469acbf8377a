"""Which attempt of a job this is: torchrun starts ranks anew after a failure."""

import os

_VARIABLE = "LABKIT_ATTEMPT"


def attempt() -> int:
    """0 in the first start of a job, 1 after the first restart, and so on; 0 in `labkit.run`.

    All ranks of all hosts agree on it. A training loop that may be restarted asks for its
    checkpoint when this is above 0.
    """
    return int(os.environ.get(_VARIABLE, "0"))


def remember_attempt(number: int) -> None:
    """For the ranks that this process is about to fork."""
    os.environ[_VARIABLE] = str(number)
