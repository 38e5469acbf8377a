"""Places that a mesh does not have are refused."""

import pytest

from labkit.mesh import coordinates_at, ranks_along


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ranks_along("tp", 0, {"dp": 2}), "axis='tp': give one of dp"),
        (lambda: coordinates_at(2, {"dp": 2}), "rank=2: 0 to 1"),
    ],
)
def test_places_that_a_mesh_does_not_have_are_refused(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()
