"""Grade chunked_prefill: plans of passes, and attention of chunks as in the whole prompt."""

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from labkit.grade import grader as g

PLAN, ATTEND = "plan_chunks", "chunk_attention"
Request = namedtuple("Request", ("id", "num_tokens", "num_cached"))


def cases(draw: g.Draw) -> list[g.Case]:
    """Return a case for each rule, random queues, and chunks at several places of a prompt."""
    listed = [
        plan([(5, 4), (30, 8), (9, 8)], [], 8, 8),
        plan([(40, 32), (9, 8)], [20, 3], 16, 8),
        plan([(9, 8), (9, 8), (9, 8)], [7, 7], 12, 4),
        plan([], [100, 3], 16, 4),
        plan([(5, 4), (30, 20)], [4, 4], 24, 3),
        plan([(30, 8)], [5, 1], 8, 4),
        plan([], [9, 1, 3], 8, 4),
    ]
    rng = draw.rng
    for _ in range(20):
        most = rng.randint(2, 8)
        cached = [rng.randint(1, 20) for _ in range(rng.randint(0, most))]
        running = [(num + rng.choice((1, 1, rng.randint(2, 30))), num) for num in cached]
        waiting = [rng.randint(1, 20) for _ in range(rng.randint(0, 5))]
        listed.append(plan(running, waiting, most + rng.randint(0, 24), most))
    for t, s in ((6, 6), (1, 7), (3, 8), (4, 5), (5, 20)):
        dtype = rng.choice((torch.float32, torch.float64))
        qkv = [draw.same(2, num, 4, dtype=dtype) for num in (t, s, s)]
        listed.append(g.Case(f"the last {t} of {s} tokens", *qkv, function=ATTEND))
    return listed


def plan(running: list[Any], waiting: Sequence[int], budget: int, most: int) -> g.Case:
    """Return a case. running: (num_tokens, num_cached) of requests; waiting: their num_tokens."""
    sizes = running + [(num, 0) for num in waiting]
    requests = [Request(id, *each) for id, each in enumerate(sizes, start=5)]
    words = [f"{r.id} ({r.num_cached} of {r.num_tokens} cached)" for r in requests]
    runs, waits = (", ".join(x) or "none" for x in (words[: len(running)], words[len(running) :]))
    return g.Case(
        f"running: {runs}; waiting: {waits}; budget {budget}, at most {most} run",
        *(requests[: len(running)], requests[len(running) :], budget, most),
        function=PLAN,
    )


def right(*args: Any) -> Any:
    """Plan token by token, or take the last rows of the attention of the whole prompt."""
    if len(args) == 3:
        q, k, v = args
        first = k.shape[1] - q.shape[1]
        whole = pad(q, (0, 0, first, 0))
        return scaled_dot_product_attention(whole, k, v, is_causal=True)[:, first:]
    running, waiting, budget, most = args
    may_run = [*running, *waiting[: most - len(running)]]
    may_run.sort(key=lambda r: r not in running or r.num_tokens - r.num_cached > 1)
    tokens = [r.id for r in may_run for _ in range(r.num_tokens - r.num_cached)][:budget]
    return {id: tokens.count(id) for id in tokens}


NUM_NOW = "        if num_now := min(num, left):"
RUNNING, PROMPTS = "for each in running}", "prompts.items()"
ADMITTED = "waiting[: max_running - len(running)]"
WAITING = f"    for each in {ADMITTED}:\n        prompts[each.id] = each.num_tokens\n"
MISTAKES = [
    g.Mistake(
        "lets prompts go before tokens of answers",
        "A request that decodes and is not in the pass makes its user wait. Single tokens first: "
        "there are max_running at most, so the budget holds them all.",
        g.patch("if num == 1}", "if num < 1}", "if num > 1}", "if num}"),
    ),
    g.Mistake(
        "does not cut prompts",
        "Cut a prompt where the budget ends. If all of it is in the pass, the pass takes as long "
        "as its longest prompt, and all others wait for it. If it waits until it fits, one longer "
        "than the budget is never computed.",
        [
            g.patch("min(num, left)", "num * (left > 0)"),
            g.patch(NUM_NOW, f"        if num > left:\n            break\n{NUM_NOW}"),
            g.patch(
                NUM_NOW,
                "        if num > left and id in [each.id for each in waiting]:\n"
                f"            break\n{NUM_NOW}",
            ),
        ],
    ),
    g.Mistake(
        "does not take prompts in order of arrival",
        "Prompts of running requests come first, then those that wait, each in order of arrival. A "
        "prompt of one token is a prompt as well: only running requests decode. If short ones "
        "overtake, a long one may never begin.",
        [
            g.patch(RUNNING, f"for each in [*running, *{ADMITTED}]}}", WAITING, ""),
            g.patch(PROMPTS, "sorted(prompts.items(), key=lambda each: each[1])"),
            g.patch(f"in {ADMITTED}:", f"in sorted({ADMITTED}, key=lambda r: r.num_tokens):"),
            g.patch(PROMPTS, "[*prompts.items()][::-1]"),
            g.patch(
                PROMPTS, "sorted(prompts.items(), key=lambda p: p[0] in {r.id for r in running})"
            ),
        ],
        hint=2,
    ),
    g.Mistake(
        "has requests without tokens in the dict",
        "A request that computes nothing in this pass is not in the dict. When the budget is used "
        "up, leave the others out.",
        g.patch(NUM_NOW, "        if (num_now := min(num, left)) >= 0:"),
        wrong=lambda s: {id: num for id, num in s.y.items() if num} == s.right[0] != s.y,
        hint=3,
    ),
    g.Mistake(
        "does not count the tokens of answers",
        "The time of a pass depends on all its tokens. Prompts get what decoding leaves.",
        g.patch("left = token_budget - len(chunks)", "left = token_budget"),
    ),
    g.Mistake(
        "computes one prompt in a pass",
        "When the first prompt has all it can use, the next one takes from what is left.",
        g.patch("            left -= num_now", "            break"),
        hint=2,
    ),
    g.Mistake(
        "lets too many requests run",
        "max_running counts requests that run already, those with unfinished prompts among them.",
        g.patch("waiting[: max_running - len(running)]", "waiting"),
        hint=3,
    ),
    g.Mistake(
        "takes the chunk for the beginning of the prompt",
        "The first token of the chunk has position s - t: it sees the s - t keys before the chunk, "
        "and its own. A mask of t by t, or is_causal=True of torch, begins at the first key, and "
        "the keys of the chunk alone are not the whole prompt.",
        g.patch("torch.arange(s - t, s)", "torch.arange(t)"),
        hint=2,
    ),
    g.Mistake(
        "begins or ends the keys one token off",
        "Token i of the chunk has position s - t + i. It attends to the keys 0 to s - t + i, its "
        "own included, and to none after it.",
        g.patches("> position_t[:, None]", ">= position_t[:, None]", "> position_t[:, None] + 1"),
        hint=3,
    ),
    g.Mistake(
        "attends to later tokens of the chunk",
        "With a single query no key is later, so decoding needs no mask. A chunk has several "
        "queries, and all but the last must not see what follows.",
        g.patch('.masked_fill(is_later_ts, float("-inf"))', ""),
    ),
]

GRADER = g.Questions(
    functions=(PLAN, ATTEND),
    cases=cases,
    right=right,
    same=g.within(32),
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    shown="every answer gets a token from each pass, however long the prompts are, no pass "
    "computes more than its budget, and chunks attend as the whole prompt does",
)
