"""Which sequence holds which slots: no model, only reservations. Caches of one number per slot."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.model import GPTConfig
from labkit.serving import ContiguousCache, NoCache, PagedCache, ScheduledTokens
from labkit.serving.caches import SlotUse
from labkit.serving.pages import prefix_keys

CONFIG = GPTConfig(num_layers=1, hidden=1, num_heads=1)
NUM_PAGES = 7
NUMBERS = st.integers(0, 3)
OPS = st.one_of(
    st.tuples(st.just("grow"), NUMBERS, st.integers(1, 6)),
    st.tuples(st.just("fork"), NUMBERS, NUMBERS),
    st.tuples(st.just("free"), NUMBERS, st.just(0)),
    st.tuples(st.just("truncate"), NUMBERS, st.integers(0, 6)),
)


def held(cache, sequence, num):
    return cache.slots([ScheduledTokens(sequence, [0] * num, cache.num_cached(sequence))])[
        0
    ].tolist()


class Model:
    """The cache's expected content: tokens by sequence. Each token is its own key."""

    def __init__(self, page_size):
        self.cache, self.tokens = PagedCache(CONFIG, NUM_PAGES, page_size), {}
        self.of_key = {}  # prefix key -> all tokens up to the end of its page

    def grow(self, i, num):
        """All begin alike, and a new sequence shares what it can. Later tokens are its own."""
        if i in self.tokens:
            start = len(self.tokens[i])
            tokens = [*self.tokens[i], *[10 + i] * num]
        else:
            tokens = [5, 6, 7, 5, 6, 7][:num]
            start = self.cache.share_prefix(i, tokens)
        needed, num_free = self.cache.pages_needed(i, len(tokens), 99), self.cache.num_free_pages
        fits = self.cache.reserve(i, len(tokens), 99)
        assert fits == (needed <= num_free)
        assert self.cache.num_free_pages == num_free - needed * fits
        if not fits:
            self.free(i, 0)
            return
        entry = ScheduledTokens(i, tokens[start:], start)
        (slots,) = self.cache.slots([entry])
        new = torch.tensor(entry.tokens, dtype=torch.float32).view(-1, 1, 1)
        self.cache.write(0, slots[start:], new, -new)
        self.cache.commit([entry])
        self.tokens[i] = tokens

    def fork(self, parent, child):
        if parent in self.tokens and child not in self.tokens:
            self.cache.fork(parent, child)
            self.tokens[child] = list(self.tokens[parent])

    def truncate(self, i, num):
        """Drop the last tokens of a sequence, which then goes on with others."""
        if i in self.tokens:
            del self.tokens[i][max(0, len(self.tokens[i]) - num) :]
            self.cache.truncate(i, len(self.tokens[i]))

    def free(self, i, _):
        self.cache.free(i)
        self.tokens.pop(i, None)

    def check(self):
        """References are the tables' own, every page is free or held, and tokens are there.

        A page that is found by a prefix key has the last tokens of that prefix.
        """
        cache, pool, size = self.cache, self.cache.pool, self.cache.page_size
        tables = [cache._tables[i].pages for i in self.tokens]
        assert cache._tables.keys() == self.tokens.keys()
        references = Counter(page for table in tables for page in table)
        assert pool.references == [references[page] for page in range(NUM_PAGES)]
        assert all(len(set(table)) == len(table) for table in tables)
        assert set(pool._free) == set(range(NUM_PAGES)) - references.keys()
        for i, tokens in self.tokens.items():
            assert cache.num_cached(i) == len(tokens)
            slots = held(cache, i, 0)
            assert cache.keys_LNGK[0, slots].flatten().tolist() == tokens
            assert cache.values_LNGK[0, slots].flatten().tolist() == [-t for t in tokens]
            for index, key in enumerate(prefix_keys(tokens, size)):
                self.of_key[key] = tokens[index * size : (index + 1) * size]
        for key, page in pool._page_of.items():
            slots = range(page * size, (page + 1) * size)
            assert cache.keys_LNGK[0, slots].flatten().tolist() == self.of_key[key]
            assert pool._key_of[page] == key


@settings(max_examples=100)
@given(st.sampled_from([1, 2, 3]), st.lists(OPS, max_size=30))
def test_no_page_is_lost_or_held_twice_and_no_token_overwritten(page_size, ops):
    model = Model(page_size)
    for name, *arguments in ops:
        getattr(model, name)(*arguments)
        model.check()
    for i in list(model.tokens):
        model.free(i, 0)
    assert model.cache.num_free_pages == NUM_PAGES


def test_a_page_that_was_found_by_others_is_copied_after_a_truncation_and_no_longer_found():
    """The last token of sequence 0 was rejected. Sequence 1 has it, too, and keeps it."""
    model = Model(3)
    model.grow(0, 3)
    model.cache.share_prefix(1, [5, 6, 7, 1])
    model.tokens[1] = [5, 6, 7]
    model.truncate(0, 1)
    assert model.cache.pages_needed(0, 3, 99) == 1
    assert model.cache.share_prefix(2, [5, 6, 7, 1]) == 0
    model.free(1, 0)
    assert model.cache.pages_needed(0, 3, 99) == 0
    model.grow(0, 1)
    model.check()
    assert model.cache.share_prefix(3, [5, 6, 10, 1]) == 3


def test_pages_without_a_token_after_a_truncation_are_free_and_still_found():
    model = Model(2)
    model.grow(0, 6)
    model.truncate(0, 3)
    assert model.cache.num_free_pages == NUM_PAGES - 2
    assert model.cache.share_prefix(1, [5, 6, 1]) == 2
    model.cache.reserve(0, 6, 99)
    assert model.cache.num_free_pages == NUM_PAGES - 3


@pytest.mark.parametrize("cache", [NoCache(CONFIG), ContiguousCache(CONFIG, 9)])
def test_other_caches_forget_the_last_tokens(cache):
    cache.reserve(0, 3, 9)
    cache.commit([ScheduledTokens(0, [1, 2, 3], 0)])
    num_cached = min(cache.num_cached(0), 2)
    cache.truncate(0, 2)
    cache.truncate(0, 9)
    assert cache.num_cached(0) == num_cached


def test_the_page_that_was_freed_first_is_taken_first_and_forgotten():
    cache = PagedCache(CONFIG, 2, 2)
    for i in range(2):
        cache.reserve(i, 2, 2)
        cache.commit([ScheduledTokens(i, [i, i], 0)])
    cache.free(1)
    cache.free(0)
    assert cache.reserve(2, 1, 9)
    assert cache.share_prefix(3, [1, 1, 5]) == 0
    assert cache.share_prefix(4, [0, 0, 5]) == 2


def test_of_a_sequence_that_ended_the_first_page_is_kept_longest():
    cache = PagedCache(CONFIG, 3, 2)
    cache.reserve(0, 6, 6)
    cache.commit([ScheduledTokens(0, [1, 2, 3, 4, 5, 6], 0)])
    cache.free(0)
    cache.reserve(1, 1, 9)
    assert cache.share_prefix(2, [1, 2, 3, 4, 5, 6, 7]) == 4


def test_of_two_pages_with_equal_tokens_the_first_is_found():
    cache = PagedCache(CONFIG, 3, 2)
    for i in range(2):
        assert cache.share_prefix(i, [1, 2]) == 0  # both before either is computed
        cache.reserve(i, 2, 2)
    cache.commit([ScheduledTokens(i, [1, 2], 0) for i in range(2)])
    cache.share_prefix(2, [1, 2, 3])
    assert cache.pool.references == [2, 1, 0]


def test_contiguous_regions_go_into_the_first_hole_that_is_long_enough():
    cache = ContiguousCache(CONFIG, 20)
    assert [cache.reserve(i, 1, longest) for i, longest in enumerate([6, 4, 10])] == [True] * 3
    assert not cache.reserve(3, 1, 3)
    cache.free(1)
    assert (cache.num_free_pages, cache.pages_needed(3, 1, 3)) == (4, 3)
    assert cache.reserve(3, 1, 3)
    assert held(cache, 3, 1) == [6]
    with pytest.raises(ValueError, match="sequence 3 reserved 3 slots and wants 4"):
        cache.reserve(3, 4, 4)


def test_waste_is_reserved_internal_and_external():
    final = {0: 5, 1: 3}  # tokens at the end, of 8 that each may have at most
    cached = [ScheduledTokens(0, [1, 2, 3], 0), ScheduledTokens(1, [9, 9], 0)]
    contiguous, pages = ContiguousCache(CONFIG, 20), PagedCache(CONFIG, 5, 4)
    for cache in (contiguous, pages):
        assert all(cache.reserve(entry.sequence, entry.end, 8) for entry in cached)
        cache.commit(cached)
    assert contiguous.slot_use(final, wanted=8) == SlotUse(5, 3, 8, 4, 0)
    assert contiguous.slot_use(final, wanted=4) == SlotUse(5, 3, 8, 0, 4)
    assert pages.slot_use(final, wanted=8) == SlotUse(5, 2, 1, 0, 12)
    assert NoCache(CONFIG).slot_use(final, wanted=8) == SlotUse(0, 0, 0, 0, 0)
    pages.fork(0, 2)  # shared slots count once
    assert pages.slot_use({**final, 2: 4}, wanted=8) == SlotUse(5, 2, 1, 0, 12)
