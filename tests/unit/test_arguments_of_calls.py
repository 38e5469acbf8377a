"""What a call of torch.distributed passes, by the names of its parameters."""

import inspect

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from labkit.comm.calls.arguments import binder
from labkit.comm.calls.readings import COLLECTIVES

NAMES = [*COLLECTIVES, "send", "isend", "recv", "irecv", "new_group", "monitored_barrier"]


def as_inspect_says(function, args, kwargs):
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return None
    bound.apply_defaults()
    return bound.arguments


@pytest.mark.parametrize("name", [name for name in NAMES if hasattr(c10d, name)])
def test_all_that_are_wrapped_have_a_parameter_for_every_argument(name):
    function = getattr(c10d, name)
    kinds = {each.kind for each in inspect.signature(function).parameters.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    for args in ((), (1,), (1, 2), (1, 2, 3), tuple(range(12))):
        assert binder(function)(args, {}) == as_inspect_says(function, args, {})


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {"op": 2}),
        ((), {"tensor": 1, "group": 3}),
        ((1,), {"tensor": 1}),
        ((), {"op": 2}),
        ((1,), {"operation": 2}),
        ((), {"tenor": 1}),
        ((1, 2, 3, True, 5), {}),
        ((1, 2), {"async_op": True, "op": 2}),
    ],
)
def test_a_call_fits_where_python_would_let_it_pass(args, kwargs):
    assert binder(dist.all_reduce)(args, kwargs) == as_inspect_says(dist.all_reduce, args, kwargs)
