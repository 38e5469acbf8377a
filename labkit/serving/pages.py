"""Rung 3: pages that sequences take as they grow, and share where they begin alike.

    sequence 7   tokens   T h e _ c a t _ s a t        pages of 4 slots
                 table    5       2       8            page 8 has one slot left
    sequence 9   tokens   T h e _ d o g
                 table    5       1                    page 5 is shared: two references

A sequence wastes less than one page, since a page is taken when the one before it is full. Every
page fits every sequence, so there are no holes.

Sharing. A full page has a prefix key: a hash of its tokens and of all tokens before it, on which
keys and values depend. A new sequence takes the pages that have its keys. A page that no sequence
uses is free, and keeps its key until it is taken. The page freed first is taken first.

Copy on write. `fork` shares the last page, too, which is not full. The first sequence that writes
to it while another holds it takes a copy.

Paper: Kwon et al., PagedAttention, SOSP 2023, section 4. Prefix keys: vLLM's automatic prefix
caching; SGLang finds prefixes in a tree instead (Zheng et al., RadixAttention, arXiv:2312.07104).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from labkit.serving.requests import ScheduledTokens


class PagePool:
    """Pages: the sequences that hold each, the free ones, and the contents of full ones."""

    def __init__(self, num_pages: int) -> None:
        self.references = [0] * num_pages
        self._free = dict.fromkeys(range(num_pages))  # ordered: the page freed first comes first
        self._page_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}

    @property
    def num_free(self) -> int:
        """Pages that no sequence holds."""
        return len(self._free)

    def take(self) -> int:
        """Take a free page, and forget what it contained. Ask num_free before."""
        page = next(iter(self._free))
        self.forget(page)
        return self.share(page)

    def share(self, page: int) -> int:
        """Let one more sequence hold the page."""
        self._free.pop(page, None)
        self.references[page] += 1
        return page

    def release(self, page: int) -> None:
        """Let one sequence give up the page. Without a holder it is free, and keeps its key."""
        self.references[page] -= 1
        if self.references[page] == 0:
            self._free[page] = None

    def publish(self, page: int, key: bytes) -> None:
        """Let sequences find this full page by its prefix key. The first page of a key stays."""
        if key not in self._page_of:
            self._page_of[key], self._key_of[page] = page, key

    def forget(self, page: int) -> None:
        """Let no sequence find the page any more, since it will be written to."""
        if (key := self._key_of.pop(page, None)) is not None:
            del self._page_of[key]

    def find(self, key: bytes) -> int | None:
        """Return the page with this prefix key."""
        return self._page_of.get(key)


@dataclass
class _Table:
    """The pages of a sequence, by position, and its cached tokens with their full pages' keys."""

    pages: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)


class Pages:
    """`num_pages` pages of `page_size` slots: any sequence can take any page next.

    A PagedCache (caches.py) adds the keys and values. Schedulers need only this class.
    """

    def __init__(self, num_pages: int, page_size: int = 16) -> None:
        self.pool, self.page_size = PagePool(num_pages), page_size
        self._tables: dict[int, _Table] = {}

    @property
    def num_free_pages(self) -> int:
        """Pages that no sequence holds, also those that are kept for their prefix."""
        return self.pool.num_free

    def pages_needed(self, sequence: int, num_tokens: int, longest: int) -> int:
        """Return how many pages it lacks, plus one if the next token needs a page copied."""
        table = self._tables.get(sequence, _Table())
        new = -(-num_tokens // self.page_size) - len(table.pages)
        return max(0, new) + self._must_copy(table, num_tokens)

    def reserve(self, sequence: int, num_tokens: int, longest: int) -> bool:
        """Like KVCache: `longest` is not needed, since a sequence can take pages later."""
        if self.pages_needed(sequence, num_tokens, longest) > self.pool.num_free:
            return False
        table = self._tables.setdefault(sequence, _Table())
        if self._must_copy(table, num_tokens):
            last = len(table.tokens) // self.page_size
            table.pages[last] = self._copy(table.pages[last])
        while len(table.pages) * self.page_size < num_tokens:
            table.pages.append(self.pool.take())
        return True

    def num_found(self, tokens: Sequence[int]) -> int:
        """Like KVCache."""
        return self.page_size * len(self._found(tokens))

    def share_prefix(self, sequence: int, tokens: Sequence[int]) -> int:
        """Like KVCache. Only full pages are shared."""
        found = self._found(tokens)
        table = _Table([self.pool.share(page) for page in found.values()], keys=list(found))
        num_shared = len(table.pages) * self.page_size
        if num_shared:
            assert sequence not in self._tables, "a sequence shares before it reserves"
            table.tokens = list(tokens[:num_shared])
            self._tables[sequence] = table
        return num_shared

    def fork(self, parent: int, child: int) -> None:
        """Let a new sequence have the cached tokens of another, without computing or copying."""
        whole = self._tables[parent]
        num_pages = -(-len(whole.tokens) // self.page_size)
        pages = [self.pool.share(page) for page in whole.pages[:num_pages]]
        self._tables[child] = _Table(pages, list(whole.tokens), list(whole.keys))

    def num_cached(self, sequence: int) -> int:
        """Like KVCache."""
        return len(self._tables[sequence].tokens) if sequence in self._tables else 0

    def commit(self, batch: Sequence[ScheduledTokens]) -> None:
        """Like KVCache, and other sequences find the pages that are full now."""
        for entry in batch:
            table = self._tables[entry.sequence]
            table.tokens += entry.tokens
            num_known = len(table.keys)
            parent = table.keys[-1] if table.keys else b""
            tokens = table.tokens[num_known * self.page_size :]
            table.keys += prefix_keys(tokens, self.page_size, parent)
            for index in range(num_known, len(table.keys)):
                self.pool.publish(table.pages[index], table.keys[index])

    def truncate(self, sequence: int, num_tokens: int) -> None:
        """Like KVCache. Dropped pages keep their prefix keys, because their contents stay valid."""
        if sequence not in self._tables:
            return
        table = self._tables[sequence]
        del table.tokens[num_tokens:]
        del table.keys[len(table.tokens) // self.page_size :]
        num_pages = -(-len(table.tokens) // self.page_size)
        for page in reversed(table.pages[num_pages:]):
            self.pool.release(page)
        del table.pages[num_pages:]
        if len(table.keys) < num_pages:  # the last page is not full
            self.pool.forget(table.pages[-1])

    def unpublish(self, sequence: int) -> None:
        """Like KVCache. Pages with the same tokens of other sequences are hidden, too."""
        for key in self._tables.get(sequence, _Table()).keys:
            if (page := self.pool.find(key)) is not None:
                self.pool.forget(page)

    def free(self, sequence: int) -> None:
        """Like KVCache. The last page first: the first ones are the most likely to be shared."""
        for page in reversed(self._tables.pop(sequence, _Table()).pages):
            self.pool.release(page)

    def pages_of(self, sequence: int) -> Sequence[int]:
        """Return the pages of a sequence, by position; none where it is not in the cache."""
        return self._tables.get(sequence, _Table()).pages

    def _found(self, tokens: Sequence[int]) -> dict[bytes, int]:
        """Return pages of the first tokens, by prefix key, up to the first that is not there."""
        found: dict[bytes, int] = {}
        for key in prefix_keys(tokens[:-1], self.page_size):
            if (page := self.pool.find(key)) is None:
                break
            found[key] = page
        return found

    def _must_copy(self, table: _Table, num_tokens: int) -> bool:
        """Return whether the next token goes to a page that is not full and has other holders."""
        num_cached = len(table.tokens)
        if num_tokens <= num_cached or num_cached % self.page_size == 0:
            return False
        return self.pool.references[table.pages[num_cached // self.page_size]] > 1

    def _copy(self, page: int) -> int:
        """Replace a shared page by a new one of the sequence's own, and return that."""
        copy = self.pool.take()
        self.pool.release(page)
        return copy


def prefix_keys(tokens: Sequence[int], page_size: int, parent: bytes = b"") -> Iterator[bytes]:
    """Yield the prefix key of each full page of tokens. parent: the key of the page before."""
    for start in range(0, len(tokens) - page_size + 1, page_size):
        page = ",".join(map(str, tokens[start : start + page_size]))
        parent = hashlib.sha256(parent + page.encode()).digest()
        yield parent
