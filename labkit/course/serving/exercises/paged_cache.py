"""Grade paged_cache: after each call, each sequence's tokens and pages, and how many are free."""

from itertools import chain, count, islice
from typing import Any

import torch

from labkit.grade import grader as g

# ("append", sequence, tokens), ("fork", parent, child) or ("free", sequence).
Call = tuple[Any, ...]
NAMES = range(4)


def cases(draw: g.Draw) -> list[g.Case]:
    """Return a case for each rule, then random calls on pools that are often full."""
    token = count(1)

    def append(name: int, num: int) -> Call:
        return "append", name, tuple(islice(token, num))

    shared = [append(0, 6), ("fork", 0, 1), append(1, 30), append(1, 1)]
    asked: list[tuple[int, int, list[Call]]] = [
        (6, 4, [append(0, 3), append(0, 1), append(0, 1), append(1, 8)]),
        (3, 4, [append(0, 5), append(1, 5), append(1, 3), ("free", 0), ("free", 0)]),
        (6, 4, [*shared, append(0, 1), ("free", 0), ("free", 1)]),
        (2, 4, [*shared, ("free", 0), append(1, 1)]),
        *((num, 4, [append(0, 6), ("fork", 0, 1), ("free", 1), append(0, 1)]) for num in (2, 6)),
    ]
    rng = draw.rng
    for _ in range(12):
        calls: list[Call] = []
        for _ in range(15):
            a, b = rng.sample(NAMES, 2)
            more = [append(a, rng.randint(1, 6))]
            fork = [("free", b), ("fork", a, b), append(b, 1)]
            calls += rng.choice((more, more, fork, [("free", a)]))
        asked.append((rng.randint(4, 9), rng.choice((1, 2, 3, 4)), calls))
    return [g.Case(f"{n} pages of {k}, {len(its)} calls", n, k, its) for n, k, its in asked]


def call(watch: Any, args: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Make the calls, and read the tokens through the tables after each. 0 is no token."""
    num_pages, page_size, calls = args
    slots_NK = torch.zeros(num_pages * page_size, 3)
    pages_PnK = slots_NK.unflatten(0, (num_pages, page_size))
    cache = watch.function(slots_NK, page_size)
    states, held = [], set()
    for kind, *arguments in calls:
        name_and_more = [*arguments]
        if kind == "append":
            arguments[1] = torch.tensor(arguments[1])[:, None].repeat(1, 3).float()
        with watch.calling(f"{kind}({', '.join(map(str, name_and_more))})"):
            returned = getattr(cache, kind)(*arguments)
        tables = [[int(page) for page in cache.table(name)] for name in NAMES]
        before, held = held, {*chain(*tables)}
        pages_PnK[[page for page in range(num_pages) if page not in held]] = 0
        slots = [pages_PnK[table].mean(-1).flatten().tolist() for table in tables]
        state = {
            "returned": returned if kind == "append" else None,
            "tokens": [tuple(int(token) for token in its if token) for its in slots],
            "num_free()": int(cache.num_free()),
            "pages taken": len(held - before),
        }
        states.append(state)
    return states


def right(num_pages: int, size: int, calls: list[Call]) -> list[dict[str, Any]]:
    """Return the state after each call. Tokens are unique, so equal pages are one shared page."""
    states, tokens, pages = [], dict.fromkeys(NAMES, ()), set()
    for kind, name, *more in calls:
        if kind == "append":
            changed = {name: tokens[name] + more[0]}
        else:
            changed = {more[0]: tokens[name]} if kind == "fork" else {name: ()}
        after = (tokens | changed).values()
        pages_after = {its[i : i + size] for its in after for i in range(0, len(its), size)}
        num_taken = max(0, len(pages_after) - len(pages))
        is_done = len(pages_after) <= num_pages
        if is_done:
            tokens, pages = tokens | changed, pages_after
        state = {
            "returned": is_done if kind == "append" else None,
            "tokens": [*tokens.values()],
            "num_free()": num_pages - len(pages),
            "pages taken": num_taken * is_done,
        }
        states.append(state)
    return states


def same(got: Any, other: Any, case: g.Case) -> bool:
    """Return whether all states are the same up to the first wrong one of `other`.

    A wrong program's later states depend on chance.
    """
    is_wrong = [one != its for one, its in zip(other, right(*case.args))]
    end = [*is_wrong, True].index(True) + 1
    return got[:end] == other[:end]


def first_wrong(s: g.Observed) -> tuple[Call, dict[str, Any], dict[str, Any]]:
    """Return the first call after which the state is wrong, this state, and the right one."""
    return next(its for its in zip(s.args[2], s.y, s.right[0]) if its[1] != its[2])


def describe(s: g.Observed) -> str:
    """Describe the first call after which the state is wrong."""
    (kind, *arguments), got, right = first_wrong(s)
    what = next(each for each in right if got[each] != right[each])
    return f"{kind}({', '.join(map(str, arguments))}): {what}: {got[what]}, expected {right[what]}"


def copies_without_need(s: g.Observed) -> bool:
    """Return whether an append takes a page too many, or has no room for such a page.

    The page before is full, so it is kept; or it was the sequence's own, so it is given up.
    """
    (_, name, tokens), got, right = first_wrong(s)
    begin = len(right["tokens"][name]) - len(tokens)
    if right["returned"] and got["returned"] is False:
        return begin % s.args[1] > 0
    is_behind_a_full_page = begin > 0 and begin % s.args[1] == 0
    is_more = got["pages taken"] > right["pages taken"] and got["tokens"] == right["tokens"]
    return is_more and (is_behind_a_full_page or got["num_free()"] == right["num_free()"])


COPIES = "must_copy = begin % size > 0 and self.holders[pages[-1]] > 1"
NUM_PAGES, WHILE, TAKE = "-(-end // size)", "len(pages) * size < end", "pages.append(self.take())"
MISTAKES = [
    g.Mistake(
        "takes a page before it is needed",
        "T tokens need ceil(T / page_size) pages: a full last page is no reason to take another.",
        g.patch(WHILE, "len(pages) * size <= end", NUM_PAGES, "end // size + 1"),
        hint=2,
    ),
    g.Mistake(
        "writes to a page that another sequence holds",
        "After a fork both sequences hold the last page, which may have room. The first one that "
        "writes takes a copy, or the other one reads tokens that are not its own.",
        g.patch(COPIES, "must_copy = False"),
    ),
    g.Mistake(
        "has one list for two tables",
        "A fork shares the pages. The lists of pages are two, for the sequences go on differently: "
        "copy the list.",
        g.patch("list(self.tables.get(sequence, []))", "self.tables.get(sequence, [])"),
        hint=3,
    ),
    g.Mistake(
        "copies a page without need",
        "A full page gets no more tokens, and a page of a single holder is its own.",
        [
            g.patch(COPIES, COPIES.replace("begin % size", "begin")),
            g.patch(
                *("self.holders[pages[-1]] > 1", "pages[-1] in self.shared"),
                *("        self.holders =", "        self.shared = set()\n        self.holders ="),
                *("self.holders[page] += 1", "self.holders[page] += 1; self.shared.add(page)"),
                *("self.holders[page] = 1\n", "self.holders[page] = 1; self.shared -= {page}\n"),
            ),
        ],
        wrong=copies_without_need,
        hint=2,
    ),
    g.Mistake(
        "copies at the fork",
        "A fork shares all pages. A page is copied when a sequence writes to it that others hold.",
        g.patch(
            "self.holders[page] += 1",
            "self.holders[page] += 1\n"
            "            if self.free_pages: self.tables[child][-1] = self.take()",
        ),
        wrong=lambda s: first_wrong(s)[0][0] == "fork" and first_wrong(s)[1]["pages taken"] > 0,
    ),
    g.Mistake(
        "makes a page free that a sequence still holds",
        "The next sequence takes this page and writes over the tokens. A page is free when its "
        "last holder gives it up.",
        g.patch("    self.release(page)\n", "    self.free_pages.append(page)\n"),
        hint=2,
    ),
    g.Mistake(
        "does not give up the page that it copied",
        "The copy takes the page's place in one table, so the page has one holder less. Otherwise "
        "it is never free again, and each fork leaks a page.",
        g.patch("            self.release(shared)\n", ""),
        hint=3,
    ),
    g.Mistake(
        "does not count the page of a copy",
        "A copy takes a page, too: append returns False if there is none for it.",
        g.patch("- len(pages) + must_copy >", "- len(pages) >"),
        crashed=lambda s: s.args[0] == 2,  # pages: none for the copy
        hint=3,
    ),
    g.Mistake(
        "changes something though there is no room",
        "An append that returns False changes nothing. Count first, then take.",
        g.patch(
            *(f"{NUM_PAGES} - len(pages) + ", ""),
            *(TAKE, f"if not self.free_pages:\n                return False\n            {TAKE}"),
        ),
        wrong=lambda s: all(state["returned"] is False for state in first_wrong(s)[1:]),
        hint=3,
    ),
]

GRADER = g.Questions(
    functions=("PagedCache",),
    cases=cases,
    right=right,
    same=same,
    call=call,
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    describe=describe,
    unexplained=(
        "a call leaves a wrong state",
        "Follow this call by hand: which pages are taken, copied and given up.",
    ),
    shown="after each call all tokens are where the tables say, no sequence holds a page more than "
    "it needs, and a page is free when its last holder has given it up",
)
