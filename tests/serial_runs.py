"""How closely ranks must follow a serial run; and one thread of torch for a module's tests.

The serial run in float32 leaves the one in float64 by what rounding does in some steps. Ranks add
the same numbers in another order, which rounds as often and no worse: they may be as far from the
truth on the other side, and GUARD times that covers other processors. In float64 the same growth
starts from a smaller eps.
"""

import pytest
import torch

GUARD = 8


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """As on a rank; more of them only get in each other's way in so small a model."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def distance(one, two):
    """The largest difference between two runs' losses."""
    return max(abs(a - b) for a, b in zip(one.losses, two.losses, strict=True))


def tolerances(serial, name):
    """Return what losses may differ by, by dtype, from runs `name` and `name in float64`."""
    rounding = distance(serial[name], serial[f"{name} in float64"])
    smaller_eps = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
    return {torch.float32: GUARD * rounding, torch.float64: GUARD * rounding * smaller_eps}
