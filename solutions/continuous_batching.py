"""Decide before each pass which requests take part: admit, continue, preempt.

An interviewer asks: "A static batch ends with its longest answer, and most of its places are idle
by then. How does a server fill them? It decides again before each pass of the model: who joins, who
goes on? Pages of the cache are taken as answers grow. What if none is left? Does any request wait
for ever?"

Write the function `next_pass`. A server calls it before each pass, and does what it returns:

    next_pass(waiting, running, num_free, page_size, max_running)

    waiting      a list of requests without pages, in order of arrival
    running      a list of requests with pages, in order of arrival, before all that wait
    request      has four whole numbers: request.id, request.num_tokens (of the prompt, and of the
                 answer so far), request.num_pages (that it holds: 0 if it waits) and
                 request.longest (how many tokens it has if its answer becomes as long as allowed)
    num_free     how many pages of the cache nobody holds
    page_size    tokens in a page
    max_running  how many requests a pass computes at most
    returns      a tuple of two lists of ids, each in any order: of running requests to preempt, and
                 of all requests that the pass computes

After the preemptions, the pass computes for each of its requests what is missing: keys and values
of all its tokens, in ceil(num_tokens / page_size) pages, and one new token. The new token gets its
place in the next pass. A request whose answer has ended gives up its pages. A preempted one gives
up its pages, keeps its tokens and waits again, before all that have arrived after it.

Contract
    room      the requests of a pass need no more new pages than are free after the preemptions
    continue  a running request is in the pass, if it is not preempted
    preempt   only if there is no room for all that run, and no more than needed, the last arrival
              first. So the first one always goes on, and every request ends
    admit     as many of the waiting as there is room for and max_running allows, in order of
              arrival. No request overtakes another, even if it is smaller. So a pass that
              preempts admits no request. No page is kept free for tokens that an
              answer may still get
    always    there is at least one request. Each fits into an empty cache. At most max_running run

Papers: Yu et al., "Orca", OSDI 2022 (decisions by pass); Kwon et al., "PagedAttention", SOSP 2023,
section 4.5 (preemption).
"""

from collections.abc import Sequence
from typing import Any


def next_pass(
    waiting: Sequence[Any],
    running: Sequence[Any],
    num_free: int,
    page_size: int,
    max_running: int,
) -> tuple[list[int], list[int]]:
    """Return the ids to preempt, and the ids that the next pass computes."""
    ### BEGIN SOLUTION

    def missing(request: Any) -> int:
        """Pages that it takes in this pass."""
        return -(-request.num_tokens // page_size) - int(request.num_pages)

    going_on, preempted = list(running), []
    room = num_free - sum(map(missing, going_on))
    while room < 0:
        last = going_on.pop()
        preempted.append(last.id)
        room += missing(last) + last.num_pages
    computed = [request.id for request in going_on]
    if preempted:
        return preempted, computed
    for request in waiting[: max_running - len(going_on)]:
        room -= missing(request)
        if room < 0:
            break
        computed.append(request.id)
    return preempted, computed
    ### END SOLUTION
