"""The picture of shards: owners in words and numbers, and arguments that it refuses."""

import pytest

from labkit import viz
from labkit.tensor_parallel import REPLICATED, Sharding, even_sharding
from labkit.viz.shard_map import parts_of


def test_words_for_ranks_and_rows():
    one = parts_of("w", ((4, 4), Sharding(1, (range(3), range(3), range(3), range(3, 4)))), 4)
    assert [one.who(part) for part in one.parts] == ["ranks 0-2", "rank 3"]
    assert [one.what(part) for part in one.parts] == ["columns 0-2", "column 3"]
    alone = parts_of("w", ((4,), even_sharding(4, 0, 1)), 1)
    assert [(alone.who(part), alone.what(part)) for part in alone.parts] == [("rank 0", "")]
    apart = parts_of("w", ((4,), Sharding(0, (range(2), range(2, 4), range(2), range(2, 4)))), 4)
    assert [apart.who(part) for part in apart.parts] == ["ranks 0, 2", "ranks 1, 3"]
    assert [apart.what(part) for part in apart.parts] == ["elements 0-1", "elements 2-3"]


@pytest.mark.parametrize(
    ("shape", "sharding", "numbers"),
    [
        ((256, 64), even_sharding(256, 0, 4), "256 x 64 -> 64 x 64"),
        ((64, 256), even_sharding(256, 1, 4), "64 x 256 -> 64 x 64"),
        ((65, 64), even_sharding(65, 0, 4), "65 x 64 -> 17 or 16 x 64"),
        ((65,), Sharding(0, (range(0), range(30), range(30, 64), range(64, 65))), "65 -> 34 to 0"),
        ((50257, 768), REPLICATED, "50,257 x 768 -> 50,257 x 768"),
    ],
)
def test_the_shapes_before_and_after_are_said(shape, sharding, numbers):
    assert parts_of("w", (shape, sharding), 4).numbers == numbers
    picture = viz.shards({"w": (shape, sharding)}, 4)
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert (f"after: {numbers}" if len(numbers) < 28 else numbers) in texts
    assert f"w {numbers}" in repr(picture)


W = (8, 8)


@pytest.mark.parametrize(
    ("tensors", "num_ranks", "error", "match"),
    [
        ({}, 2, ValueError, "0 tensors"),
        ({str(n): (W, Sharding()) for n in range(9)}, 2, ValueError, "9 tensors"),
        ({"w": (W, Sharding())}, 9, ValueError, "num_ranks=9"),
        ({"w": ((8, 8, 8), Sharding())}, 2, ValueError, r"w: .*\(8, 8, 8\)"),
        ({"w": ((8, 0), Sharding())}, 2, ValueError, "positive"),
        ({"w": (W, even_sharding(8, 0, 3))}, 2, ValueError, "3 ranks"),
        ({"w": (W, even_sharding(8, 2, 2))}, 2, ValueError, "dim 2"),
        ({"w": (W, even_sharding(9, 0, 2))}, 2, ValueError, r"rank 1 .*range\(5, 9\)"),
        ({"w": (W, even_sharding(6, 0, 2))}, 2, ValueError, "rows 6-7"),
        ({"w": (W, even_sharding(7, 1, 2))}, 2, ValueError, "column 7"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tensors, num_ranks, error, match):
    with pytest.raises(error, match=match):
        viz.shards(tensors, num_ranks)
