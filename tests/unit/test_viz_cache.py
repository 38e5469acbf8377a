"""Pictures of a cache: each slot's colours and letter, and the shares of slots by kind."""

import pytest
import torch
from matplotlib.colors import to_hex

from labkit import viz
from labkit.model import GPT, GPTConfig
from labkit.serving import ContiguousCache, Decoder, PagedCache, ScheduledTokens
from labkit.serving.caches import SlotUse
from labkit.viz import style

CONFIG = GPTConfig(num_layers=1, hidden=8, num_heads=2, rotary=True)
TEXTS = {7: "The cat", 9: "The dog"}
FIRST, SECOND = style.rank_colour(0), style.rank_colour(1)


def filled(cache):
    """The cache with the two texts, each of 10 tokens at most."""
    torch.manual_seed(0)
    decoder = Decoder(GPT(CONFIG))
    for sequence, text in TEXTS.items():
        tokens = list(text.encode())
        shared = cache.share_prefix(sequence, tokens)
        assert cache.reserve(sequence, len(tokens), 10)
        decoder([ScheduledTokens(sequence, tokens[shared:], shared)], cache)
    return cache


def drawn(picture):
    """The colours of all stripes from left to right, by row, and all texts but the empty ones."""
    (axes,) = picture.axes
    (collection,) = axes.collections
    colours = [to_hex(each) for each in collection.get_facecolors()]
    return colours, [text.get_text() for text in axes.texts if text.get_text()]


def test_a_region_is_pale_where_it_is_reserved_and_white_outside():
    colours, texts = drawn(viz.cache_map(filled(ContiguousCache(CONFIG, 24)), TEXTS))
    pale = [style.tint(each, 0.65) for each in (FIRST, SECOND)]
    whites = ["#ffffff"] * 4
    assert colours == [FIRST] * 7 + [pale[0]] * 3 + [SECOND] * 7 + [pale[1]] * 3 + whites
    assert texts[2:] == [*"The cat", *"The dog", *texts[-4:]]
    assert texts[-4:] == ["sequence 7", "slots 0 to 9", "sequence 9", "slots 10 to 19"]


def test_a_shared_page_has_the_colours_of_all_that_hold_it():
    colours, texts = drawn(viz.cache_map(filled(PagedCache(CONFIG, 4, 4)), TEXTS))
    pale = [style.tint(each, 0.65) for each in (FIRST, SECOND)]
    assert colours[:8] == [FIRST, SECOND] * 4
    assert colours[8:16] == [FIRST] * 3 + [pale[0]] + [SECOND] * 3 + [pale[1]]
    assert colours[16:] == ["#ffffff"] * 4
    assert texts[-4:] == ["sequence 7", "pages 0, 1", "sequence 9", "pages 0, 2"]
    assert [text for text in texts[2:-4] if text.isdigit()] == ["0", "1", "2", "3"]


def test_a_sequence_that_holds_nothing_is_named():
    picture = viz.cache_map(PagedCache(CONFIG, 4, 4), {1: ""})
    assert repr(picture).endswith("sequence 1: nothing>")


@pytest.mark.parametrize(
    ("cache", "texts", "complaint"),
    [
        (ContiguousCache(CONFIG, 193), {}, "193 slots"),
        (ContiguousCache(CONFIG, 24), dict.fromkeys(range(9), ""), "9 sequences"),
        (filled(ContiguousCache(CONFIG, 24)), {7: "The"}, "7 .* 3 letters"),
    ],
)
def test_what_cannot_be_drawn_is_refused(cache, texts, complaint):
    with pytest.raises(ValueError, match=complaint):
        viz.cache_map(cache, texts)


def test_shares_of_slots_are_stacked_over_passes():
    uses = [SlotUse(2, 1, 1, 0, 4), SlotUse(4, 0, 1, 1, 2)]
    picture = viz.slot_use({"regions": uses, "pages": uses[:1]})
    assert "regions 38% cached, pages 25% cached" in repr(picture)
    axes, other = picture.axes
    tops = [max(y for _, y in each.get_paths()[0].vertices) for each in axes.collections]
    assert tops == [4 / 8, 4 / 8, 5 / 8, 6 / 8]  # the most of each sum, from below
    assert other.get_xlim() == axes.get_xlim() == (0, 2)
    labels = [text.get_text() for text in picture.legends[0].get_texts()]
    assert labels == ["cached", "reserved", "internal", "external"]


def test_no_passes_cannot_be_drawn():
    with pytest.raises(ValueError, match="passes"):
        viz.slot_use({"pages": []})
