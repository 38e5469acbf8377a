"""The picture of rows and columns: rectangles are where the cut is, in the rank's colour."""

import pytest
from matplotlib.colors import to_hex

from labkit import viz
from labkit.tensor_parallel import HeadShares, Sharding, even_sharding
from labkit.tensor_parallel.linear import head_sharding
from labkit.viz import style

SHARES = HeadShares(num_heads=4, num_kv_heads=2, num_ranks=4)
KEYS = head_sharding([SHARES.keys(rank) for rank in range(4)], 16, 0)


def said(picture):
    return [text.get_text() for text in picture.axes[0].texts if text.get_text()]


def colour(rank):
    return style.paler(style.rank_colour(rank), 0.3)


def frames(picture):
    """[(x, y, width, height), colours] of every part: several colours are stripes."""
    (axes,) = picture.axes
    found = []
    for patch in axes.patches:
        if to_hex(patch.get_edgecolor()) != style.INK:
            continue
        colours = [to_hex(patch.get_facecolor())]
        if not patch.get_fill():
            (stripes,) = [s for s in axes.collections if is_cut_off_at(patch, s)]
            colours = sorted({to_hex(each) for each in stripes.get_facecolor()})
        box = (patch.get_x(), patch.get_y(), patch.get_width(), patch.get_height())
        found.append((box, colours))
    return found


def is_cut_off_at(patch, stripes):
    return stripes.get_clip_box().bounds == pytest.approx(patch.get_window_extent().bounds)


def ranges(picture, shape, dim):
    """Return {(first, length): colours} of the one tensor in the picture, in rows or columns."""
    (before, _), *after = frames(picture)
    side, other = (1, 0) if dim == 0 and len(shape) == 2 else (0, 1)
    start = min(box[side] for box, _ in after)
    per_inch = shape[dim] / before[2 + side]
    # The second rectangle is as large as the first, and beside it.
    assert {box[2 + other] for box, _ in after} == {before[2 + other]}
    assert min(box[1] for box, _ in after) == before[1]
    assert all(box[0] > before[0] + before[2] for box, _ in after)
    return {
        (round((box[side] - start) * per_inch, 6), round(box[2 + side] * per_inch, 6)): colours
        for box, colours in after
    }


@pytest.mark.parametrize(
    ("shape", "sharding"),
    [
        ((256, 64), even_sharding(256, 0, 4)),
        ((64, 256), even_sharding(256, 1, 4)),
        ((65, 64), even_sharding(65, 0, 4)),
        ((65,), even_sharding(65, 0, 4)),
        ((64, 10), even_sharding(10, -1, 4)),
        ((10, 64), even_sharding(10, -2, 4)),
        ((64, 64), Sharding(0, (range(48, 64), range(16), range(16, 32), range(32, 48)))),
    ],
)
def test_each_rank_has_its_rows_or_columns_in_its_colour(shape, sharding):
    picture = viz.shards({"w": (shape, sharding)}, 4)
    dim = sharding.dim % len(shape)
    expected = {
        (part.start, len(part)): [colour(rank)] for rank, part in enumerate(sharding.ranges)
    }
    assert ranges(picture, shape, dim) == expected


def test_before_every_rank_holds_all_of_it():
    (_, colours), *_ = frames(viz.shards({"w": ((64, 64), even_sharding(64, 0, 3))}, 3))
    assert colours == sorted(colour(rank) for rank in range(3))


def test_what_several_ranks_hold_is_striped_in_their_colours():
    picture = viz.shards({"key": ((32, 64), KEYS)}, 4)
    pairs = {(0, 16): (0, 1), (16, 16): (2, 3)}
    expected = {place: sorted(map(colour, ranks)) for place, ranks in pairs.items()}
    assert ranges(picture, (32, 64), 0) == expected
    assert {"ranks 0, 1\nrows 0-15", "ranks 2, 3\nrows 16-31"} <= set(said(picture))


def test_a_replicated_tensor_stays_whole_on_all_ranks():
    picture = viz.shards({"norm": ((64,), Sharding())}, 4)
    assert ranges(picture, (64,), 0) == {(0, 64): sorted(colour(rank) for rank in range(4))}
    assert any("64 -> 64" in text for text in said(picture))


def test_even_the_smallest_shared_part_shows_every_rank():
    sharding = Sharding(1, (range(1),) * 7 + (range(1, 100),))
    _, (_, sliver), _ = frames(viz.shards({"w": ((4, 100), sharding)}, 8))
    assert sliver == sorted(colour(rank) for rank in range(7))


def test_an_empty_share_is_no_part_and_is_named():
    picture = viz.shards({"w": ((2, 64), even_sharding(2, 0, 4))}, 4)
    assert ranges(picture, (2, 64), 0) == {(0, 1): [colour(0)], (1, 1): [colour(1)]}
    assert any("ranks 2, 3" in text for text in said(picture)) and "ranks 2, 3" in repr(picture)


def test_where_words_do_not_fit_a_rank_has_its_colour_alone():
    picture = viz.shards({"w": ((1000, 64), Sharding(0, (range(990), range(990, 1000))))}, 2)
    assert ranges(picture, (1000, 64), 0) == {(0, 990): [colour(0)], (990, 10): [colour(1)]}
    assert [text for text in said(picture) if text.startswith("rank")] == ["rank 0\nrows 0-989"]
    (legend,) = [child for child in picture.axes[0].get_children() if hasattr(child, "get_texts")]
    assert [text.get_text() for text in legend.get_texts()] == ["rank 0", "rank 1"]
