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
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def append(self, sequence: int, rows_nK: Tensor) -> bool:
        """Write the next tokens of a sequence; False, and no change, if there is no room."""
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def fork(self, parent: int, child: int) -> None:
        """Let a new sequence share all pages of another."""
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def free(self, sequence: int) -> None:
        """Give up the pages of a sequence, if it has any."""
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def table(self, sequence: int) -> list[int]:
        """Return the pages of a sequence, by position."""
        raise NotImplementedError("not attempted yet: your code replaces this line")

    def num_free(self) -> int:
        """Return how many pages no sequence holds."""
        raise NotImplementedError("not attempted yet: your code replaces this line")
