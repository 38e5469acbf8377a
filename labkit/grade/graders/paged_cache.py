"""Grade paged_cache: after each call, each sequence's tokens and pages, and how many are free."""

from itertools import chain, count
from typing import Any

import torch

from labkit.grade import grader as g

# ("append", sequence, how many), ("fork", parent, child) or ("free", sequence).
Call = tuple[Any, ...]
NAMES = range(4)


def cases(draw: g.Draw) -> list[g.Case]:
    """One rule after the other, then random calls with pools that are often full."""
    shared = [("append", 0, 6), ("fork", 0, 1), ("append", 1, 1)]
    asked: list[tuple[int, int, list[Call]]] = [
        (6, 4, [("append", 0, 3), ("append", 0, 1), ("append", 0, 1), ("append", 1, 8)]),
        (7, 2, [("append", 0, 4), ("append", 1, 2), ("append", 0, 3), ("free", 0), ("free", 0)]),
        (6, 4, [*shared, ("append", 0, 1), ("free", 0), ("free", 1)]),
        (6, 4, [*shared, ("free", 0), ("append", 1, 1), ("free", 1)]),
        (3, 4, [("append", 0, 5), ("append", 1, 5), ("append", 1, 3), ("append", 2, 4)]),
        (2, 4, [*shared, ("free", 0), ("append", 1, 1)]),
    ]
    rng = draw.rng
    for _ in range(12):
        calls: list[Call] = []
        for _ in range(15):
            a, b = rng.sample(NAMES, 2)
            append = ("append", a, rng.randint(1, 6))
            fork = [("free", b), ("fork", a, b), ("append", b, 1)]
            calls += rng.choice(([append], [append], fork, [("free", a)]))
        asked.append((rng.randint(4, 9), rng.choice((1, 2, 3, 4)), calls))
    return [g.Case(f"{n} pages of {k}, {len(its)} calls", n, k, its) for n, k, its in asked]


def call(watch: Any, args: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Make the calls, and read the slots through the tables after each.

    Each page has a new number whenever it is taken, so that all choices of a page look the same,
    and free pages are filled with 0. Tokens are numbered as they are given to append.
    """
    num_pages, page_size, calls = args
    slots_NK = torch.zeros(num_pages * page_size, 3)
    pages_PnK = slots_NK.unflatten(0, (num_pages, page_size))
    cache = watch.function(slots_NK, page_size)
    states, token, fresh, numbers = [], count(1), count(1), {}
    for kind, name, *more in calls:
        if kind == "append":
            rows_n = torch.tensor([float(next(token)) for _ in range(more[0])])
            more = [rows_n[:, None].repeat(1, 3)]
        returned = getattr(cache, kind)(name, *more)
        tables = [[int(page) for page in cache.table(each)] for each in NAMES]
        held = dict.fromkeys(chain(*tables))
        pages_PnK[[page for page in range(num_pages) if page not in held]] = 0
        numbers = {page: numbers.get(page) or next(fresh) for page in held}
        state = {
            "tokens": [pages_PnK[its].mean(-1).flatten().int().tolist() for its in tables],
            "returned": returned if kind == "append" else None,
            "tables": [[numbers[page] for page in its] for its in tables],
            "num_free()": int(cache.num_free()),
        }
        states.append(state)
    return states


def right(num_pages: int, page_size: int, calls: list[Call]) -> list[dict[str, Any]]:
    """With a new number for each page that is taken: it fits if the numbers in use are few."""
    tables, tokens = ([[] for _ in NAMES] for _ in range(2))
    states, token, fresh = [], count(1), count(1)
    for kind, name, *more in calls:
        returned = None
        if kind == "append":
            rows, begin = [next(token) for _ in range(more[0])], len(tokens[name])
            others = chain(*tables[:name], *tables[name + 1 :])
            is_shared = begin % page_size > 0 and tables[name][-1] in others
            kept = tables[name][: len(tables[name]) - is_shared]
            num_new = -(-(begin + len(rows)) // page_size) - len(kept)
            if returned := num_new <= num_pages - len({*chain(*tables)}):
                tables[name] = kept + [next(fresh) for _ in range(num_new)]
                tokens[name] = tokens[name] + rows
        elif kind == "fork":
            tables[more[0]], tokens[more[0]] = tables[name], tokens[name]
        else:
            tables[name], tokens[name] = [], []
        state = {
            "tokens": [its + [0] * (-len(its) % page_size) for its in tokens],
            "returned": returned,
            "tables": [*tables],
            "num_free()": num_pages - len({*chain(*tables)}),
        }
        states.append(state)
    return states


def same(got: Any, other: Any, case: g.Case) -> bool:
    """Whether all is the same until `other` is wrong. What comes later depends on chance."""
    is_wrong = [one != its for one, its in zip(other, right(*case.args))]
    end = [*is_wrong, True].index(True) + 1
    return got[:end] == other[:end]


def first_wrong(s: g.Observed) -> tuple[Call, dict[str, Any], dict[str, Any]]:
    """The first call after which the state is wrong, this state, and the right one."""
    return next(its for its in zip(s.args[2], s.y, s.right[0]) if its[1] != its[2])


def describe(s: g.Observed) -> str:
    """The first call that goes wrong."""
    (kind, *arguments), got, right = first_wrong(s)
    what = next(each for each in right if got[each] != right[each])
    return f"{kind}({', '.join(map(str, arguments))}): {what}: {got[what]}, expected {right[what]}"


COPIES = "must_copy = begin % size > 0 and self.holders[pages[-1]] > 1"
SHARE, TABLE = "self.lengths[child] = self.table(parent)", "self.page_size, self.table(sequence)"
NEED, WHILE, TAKE = "-(-end // size)", "len(pages) * size < end", "pages.append(self.take())"
SLOTS = "[[pages[i // size] * size + i % size for i in range(begin, end)]]"
BEGIN = "pages[begin // size] * size + begin % size"
IN_A_ROW = f"[[({BEGIN} + i) % len(self.slots_NK) for i in range(end - begin)]]"
MISTAKES = [
    g.Mistake(
        "takes a page before it is needed",
        "T tokens need ceil(T / page_size) pages: a full last page is no reason to take another.",
        [
            g.patch(WHILE, "len(pages) * size <= end"),
            g.patch(WHILE, "len(pages) * size <= end", NEED, "end // size + 1"),
        ],
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
        g.patch(
            *(SHARE, SHARE.replace("self.table(parent)", "self.tables.get(parent, [])")),
            *(TABLE, "self.page_size, self.tables.get(sequence, [])"),
        ),
        hint=3,
    ),
    g.Mistake(
        "takes a new page without the tokens of the old one",
        "The page holds tokens before the new ones. Copy them, too, or the sequence has lost them.",
        g.patch("            self.of_page(pages[-1]).copy_(self.of_page(shared))\n", ""),
        hint=3,
    ),
    g.Mistake(
        "copies a page without need",
        "A sequence copies a page that it writes to and others hold. A full page gets no more "
        "tokens, a page of a single holder is its own, and most pages that a fork shares are never "
        "written again.",
        [
            g.patch(COPIES, COPIES.replace("begin % size", "begin")),
            g.patch(COPIES, COPIES.replace("> 1", ">= 1")),
            g.patch(
                f"        self.tables[child], {SHARE}",
                "        rows_nK = self.slots_NK.unflatten(0, (-1, self.page_size))\n"
                "        rows_nK = rows_nK[self.table(parent)].flatten(0, 1)\n"
                "        return self.append(child, rows_nK[: self.lengths.get(parent, 0)])\n"
                f"        self.tables[child], {SHARE}",
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "makes a page free that a sequence still holds",
        "The next sequence takes this page and writes over the tokens. A page is free when its "
        "last holder gives it up.",
        [
            g.patch("if self.holders[page] == 0:", "if self.holders[page] >= 0:"),
            g.patch("    self.release(page)\n", "    self.free_pages.append(page)\n"),
        ],
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
        "does not make pages free again",
        "The pages of a sequence that ended go back to the pool. Otherwise it is empty after a "
        "while, and every append returns False.",
        g.patch("            self.free_pages.append(page)", "            pass"),
    ),
    g.Mistake(
        "takes pages though there is no room",
        "An append that returns False changes nothing. Count first, then take.",
        g.patch(
            f"{NEED} - len(pages) + must_copy > self.num_free()",
            "must_copy > self.num_free()",
            TAKE,
            f"if not self.free_pages:\n                return False\n            {TAKE}",
        ),
        # Some have written tokens, too.
        seen=lambda s: (
            (its := first_wrong(s))[1]["returned"] is its[2]["returned"] is False
            and its[1]["num_free()"] < its[2]["num_free()"]
        ),
        hint=3,
    ),
    g.Mistake(
        "writes past the end of a page",
        "The next page of a sequence is anywhere. Compute the slot of each token from the table.",
        [
            g.patch(SLOTS, IN_A_ROW),
            g.patch(SLOTS, IN_A_ROW, "self.free_pages.pop()", "self.free_pages.pop(0)"),
        ],
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
    fault=g.unexplained(
        "a call leaves a wrong state",
        "Follow this call by hand: which pages are taken, copied and given up.",
        describe,
    ),
    shown="after each call all tokens are where the tables say, no sequence holds a page more than "
    "it needs, and a page is free when its last holder has given it up",
)
