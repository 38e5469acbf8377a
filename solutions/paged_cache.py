"""Keep keys and values in pages: tables, reference counts, and copies only where one writes.

An interviewer asks: "Requests grow token by token, and nobody knows how long. How does a server
keep their keys and values without a reservation for the longest answer? Two answers continue the
same prompt: what do they share, and when does one of them need a copy? How do you find a leak?"

Write the class `PagedCache`. A server makes one, and uses it like this:

    cache = PagedCache(slots_NK, page_size)
    cache.append(7, rows_nK)     # sequence 7 has n more tokens
    cache.fork(7, 8)             # sequence 8 begins with all tokens of sequence 7
    cache.append(8, rows_nK)
    cache.free(7)

    slots_NK     a tensor of N slots; append writes into it. A slot has K numbers, the keys and
                 values of one token. Page p is slots_NK[p * page_size : (p + 1) * page_size].
                 page_size divides N
    sequence     a number, the name of a sequence. After free, the name may be used again

Contract
    append(sequence, rows_nK)  writes the next n tokens of a sequence; n is 1 or more. The first
                 append begins the sequence. Returns True, or False if too few pages are free for
                 all n tokens: then nothing has changed
    fork(parent, child)  gives child the tokens of parent, without a copy. child has no tokens
                 before; if parent has none, either, nothing happens
    free(sequence)  gives up a sequence. Nothing happens if there is none of this name
    table(sequence)  returns the list of its pages, the page of its first token first, or []. The
                 caller does not change it
    num_free()   returns how many pages no sequence holds

    tokens       token i is in slot table[i // page_size] * page_size + i % page_size
    pages        a sequence of T tokens holds ceil(T / page_size) pages, taken when they are needed.
                 You choose which free page is taken
    sharing      a page is free when no sequence holds it any more. It is copied when a sequence
                 writes to it that is not its only holder, and at no other time

Paper: Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023, section 4.
"""

from torch import Tensor


class PagedCache:
    """Pages of slots that sequences take as they grow, and share after a fork."""

    def __init__(self, slots_NK: Tensor, page_size: int) -> None:
        """Begin with all pages free."""
        ### BEGIN SOLUTION
        self.slots_NK, self.page_size = slots_NK, page_size
        self.free_pages = list(range(len(slots_NK) // page_size))
        self.holders = [0] * len(self.free_pages)
        self.tables: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        ### END SOLUTION

    def append(self, sequence: int, rows_nK: Tensor) -> bool:
        """Write the next tokens of a sequence; False, and no change, if there is no room."""
        ### BEGIN SOLUTION
        size, pages = self.page_size, self.table(sequence)
        begin = self.lengths.get(sequence, 0)
        end = begin + len(rows_nK)
        must_copy = begin % size > 0 and self.holders[pages[-1]] > 1
        if -(-end // size) - len(pages) + must_copy > self.num_free():
            return False
        if must_copy:
            shared, pages[-1] = pages[-1], self.take()
            self.of_page(pages[-1]).copy_(self.of_page(shared))
            self.release(shared)
        while len(pages) * size < end:
            pages.append(self.take())
        self.slots_NK[[pages[i // size] * size + i % size for i in range(begin, end)]] = rows_nK
        self.tables[sequence], self.lengths[sequence] = pages, end
        return True
        ### END SOLUTION

    def fork(self, parent: int, child: int) -> None:
        """Let a new sequence share all pages of another."""
        ### BEGIN SOLUTION
        self.tables[child], self.lengths[child] = self.table(parent), self.lengths.get(parent, 0)
        for page in self.tables[child]:
            self.holders[page] += 1
        ### END SOLUTION

    def free(self, sequence: int) -> None:
        """Give up the pages of a sequence, if it has any."""
        ### BEGIN SOLUTION
        self.lengths.pop(sequence, None)
        for page in self.tables.pop(sequence, []):
            self.release(page)
        ### END SOLUTION

    def table(self, sequence: int) -> list[int]:
        """Return the pages of a sequence, by position."""
        ### BEGIN SOLUTION
        return list(self.tables.get(sequence, []))
        ### END SOLUTION

    def num_free(self) -> int:
        """Return how many pages no sequence holds."""
        ### BEGIN SOLUTION
        return len(self.free_pages)

    def take(self) -> int:
        """A free page, now with one holder."""
        page = self.free_pages.pop()
        self.holders[page] = 1
        return page

    def release(self, page: int) -> None:
        """One sequence gives up the page; the last one makes it free."""
        self.holders[page] -= 1
        if self.holders[page] == 0:
            self.free_pages.append(page)

    def of_page(self, page: int) -> Tensor:
        """The slots of a page."""
        return self.slots_NK[page * self.page_size : (page + 1) * self.page_size]
        ### END SOLUTION
