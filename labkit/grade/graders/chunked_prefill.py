"""Grade chunked_prefill: plans of passes, and attention of chunks as in the whole prompt."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

from labkit.grade.grader import Case, Draw, Mistake, Observed, Questions, close, patch, unexplained

FUNCTIONS = PLAN, ATTEND = "plan_chunks", "chunk_attention"


class Request(NamedTuple):
    """What plan_chunks sees."""

    id: int
    num_tokens: int
    num_cached: int

    @property
    def missing(self) -> int:
        """Tokens to compute."""
        return self.num_tokens - self.num_cached


def cases(draw: Draw) -> list[Case]:
    """One rule after the other, random queues; chunks at all places of a prompt."""
    asked = [
        (requests((5, 4), (9, 8)), [], 8, 8),
        (requests((5, 4), (30, 0), (9, 8)), [], 8, 8),
        (requests((40, 32), (9, 8)), requests((20, 0), (3, 0), first=5), 16, 8),
        (requests((9, 8), (9, 8), (9, 8)), requests((7, 0), (7, 0), first=5), 12, 4),
        (requests((40, 8), (40, 8)), requests((7, 0), first=5), 16, 8),
        (requests((9, 8), (9, 8)), requests((3, 0), (2, 0), (9, 0), (9, 0), first=5), 12, 8),
        ([], requests((100, 0), (3, 0), first=5), 16, 4),
    ]
    rng = draw.rng
    for _ in range(20):
        most, num_running = rng.randint(2, 8), rng.randint(0, 8)
        running = []
        for _ in range(min(most, num_running)):
            num_cached = rng.randint(1, 20)
            running.append((num_cached + rng.choice((1, 1, rng.randint(2, 30))), num_cached))
        waiting = [(rng.randint(1, 20), 0) for _ in range(rng.randint(0, 5))]
        budget = most + rng.randint(0, 24)
        asked.append((requests(*running), requests(*waiting, first=10), budget, most))
    found = [
        Case(f"{len(a)} running, {len(b)} waiting", a, b, budget, most, function=PLAN, known=PLAN)
        for a, b, budget, most in asked
    ]
    for t, s in ((6, 6), (1, 7), (3, 8), (4, 5), (5, 20)):
        dtype = rng.choice((torch.float32, torch.float64))
        q, k, v = (draw.same(2, each, 4, dtype=dtype) for each in (t, s, s))
        label = f"the last {t} of {s} tokens"
        found.append(Case(label, q, k, v, function=ATTEND, known=ATTEND))
    return found


def requests(*sizes: tuple[int, int], first: int = 0) -> list[Request]:
    """With ids from `first` on."""
    return [Request(first + n, *each) for n, each in enumerate(sizes)]


def right(*args: Any, known: str) -> Any:
    """Token by token; the last rows of the attention of all tokens."""
    if known == ATTEND:
        return last_rows(*args)
    running, waiting, budget, most = args
    may_run = [*running, *waiting[: most - len(running)]]
    decode = [each for each in running if each.missing == 1]
    order = [*decode, *(each for each in may_run if each not in decode)]
    tokens = [each.id for each in order for _ in range(each.missing)][:budget]
    return {id: tokens.count(id) for id in tokens}


def last_rows(q_HtK: Tensor, k_HsK: Tensor, v_HsK: Tensor) -> Tensor:
    """As if the tokens before had zeros for queries."""
    t, s = q_HtK.shape[1], k_HsK.shape[1]
    q_HsK = torch.cat([q_HtK.new_zeros(2, s - t, 4), q_HtK], 1)
    return attention(q_HsK, k_HsK, v_HsK, is_causal=True)[:, s - t :]


def one_off(keys: int) -> Callable[..., Tensor]:
    """A formula of attention: each token attends to so many keys more."""

    def attend(q_HtK: Tensor, k_HsK: Tensor, v_HsK: Tensor) -> Tensor:
        scores_Hts = q_HtK @ k_HsK.transpose(1, 2) / q_HtK.shape[2] ** 0.5
        t, s = scores_Hts.shape[1:]
        sees_ts = torch.ones(t, s).tril(s - t + keys) > 0
        return scores_Hts.where(sees_ts, -torch.inf).softmax(-1) @ v_HsK

    return attend


class Planned(NamedTuple):
    """A wrong plan: its chunks, and the requests that may have some, in order."""

    chunks: dict[int, int]
    decoding: list[Request]
    prompts: list[Request]
    budget: int

    @property
    def excess(self) -> int:
        """Tokens beyond the budget."""
        return sum(self.chunks.values()) - self.budget

    @property
    def left_out(self) -> list[Request]:
        """Prompts without a token."""
        return [each for each in self.prompts if each.id not in self.chunks]


def planned(s: Observed) -> Planned:
    """ValueError for the other function, which has three arguments."""
    running, waiting, budget, most = s.args
    may_run = [*running, *waiting[: most - len(running)]]
    decoding = [each for each in running if each.missing == 1]
    return Planned({**s.y}, decoding, [each for each in may_run if each not in decoding], budget)


def waits_for_room(s: Observed) -> bool:
    """Whether the first prompt without a token is one that the rest of the budget does not hold."""
    plan = planned(s)
    return plan.excess < 0 and plan.left_out[0].missing > -plan.excess


def one_prompt(s: Observed) -> bool:
    """Whether a single prompt has tokens, and the budget some left for the next one."""
    plan = planned(s)
    return plan.excess < 0 and len(plan.prompts) - len(plan.left_out) == 1


def describe(s: Observed) -> str:
    """Both plans."""
    if s.case.function == ATTEND:
        return "other numbers than the last rows of the attention of all tokens"
    running, waiting = (
        ", ".join(f"{r.id} ({r.num_cached} of {r.num_tokens} cached)" for r in each) or "none"
        for each in s.args[:2]
    )
    return (
        f"running: {running}; waiting: {waiting}; budget {s.args[2]}, at most {s.args[3]} run: "
        f"got {s.y}, expected {s.right[0]}"
    )


OTHER_CHUNKS = unexplained(
    "a pass has other chunks",
    "Give out the budget token by token: first to all that decode, then prompt after prompt.",
    describe,
)
LEFT, TAKE = "left = token_budget - len(chunks)", "num_now := min(num, left)"
MASK = "is_later_ts = position_s > position_t[:, None]"
MISTAKES = [
    Mistake(
        "lets prompts go before tokens of answers",
        "A request that decodes and is not in the pass makes its user wait. Single tokens first: "
        "there are max_running at most, so the budget holds them all.",
        seen=lambda s: any(not planned(s).chunks.get(each.id) for each in planned(s).decoding),
        made_by=patch("if num == 1}", "if num < 1}", "if num > 1}", "if num}"),
    ),
    Mistake(
        "computes whole prompts",
        "The pass takes as long as its longest prompt, and all others wait for it. Cut the prompt "
        "where the budget ends.",
        seen=lambda s: (
            (plan := planned(s)).excess > 0
            and all(plan.chunks.get(r.id, r.missing) == r.missing for r in plan.prompts)
        ),
        made_by=patch(TAKE, "num_now := num * (left > 0)"),
    ),
    Mistake(
        "does not count the tokens of answers",
        "The time of a pass depends on all its tokens. Prompts get what decoding leaves.",
        seen=lambda s: (plan := planned(s)).excess == len(plan.decoding) > 0,
        made_by=patch(LEFT, "left = token_budget"),
    ),
    Mistake(
        "waits until a whole prompt fits",
        "A prompt longer than the budget would never be computed, and the pass has room for a part "
        "of it.",
        seen=waits_for_room,
        made_by=patch(TAKE, "num_now := num * (num <= left)"),
    ),
    Mistake(
        "computes one prompt in a pass",
        "When the first prompt has all it can use, the next one takes from what is left.",
        hint=2,
        seen=one_prompt,
        made_by=patch("            left -= num_now", "            break"),
    ),
    Mistake(
        "computes cached tokens again",
        "A prompt that runs has keys and values of its first num_cached tokens. What is left is "
        "num_tokens - num_cached.",
        hint=2,
        seen=lambda s: any(r.missing < planned(s).chunks.get(r.id, 0) for r in planned(s).prompts),
        made_by=patch(
            "{id: num for id, num in missing.items() if num > 1}",
            "{each.id: each.num_tokens for each in running if each.id not in chunks}",
        ),
    ),
    Mistake(
        "has requests without tokens",
        "The pass computes the requests of the dict. Leave out those for which nothing is left.",
        hint=3,
        seen=lambda s: (
            all(planned(s).chunks.get(r.id) for r in planned(s).decoding) and 0 in s.y.values()
        ),
        made_by=patch(f"if {TAKE}:", f"if ({TAKE}) >= 0:"),
    ),
    Mistake(
        "lets too many requests run",
        "max_running counts requests that run already, those with unfinished prompts among them.",
        hint=3,
        seen=lambda s: len({r.id for r in s.args[0]} | {*s.y}) > s.args[3],
        made_by=patch("waiting[: max_running - len(running)]", "waiting[:max_running]"),
    ),
    Mistake(
        "takes the chunk for the beginning of the prompt",
        "The first token of the chunk has position s - t, so it sees s - t + 1 keys. A mask of t "
        "by t, or is_causal=True of torch, begins at the first key instead.",
        hint=2,
        function=ATTEND,
        formula=lambda q, k, v: attention(q, k, v, is_causal=True),
        made_by=patch("torch.arange(s - t, s)", "torch.arange(t)"),
    ),
    Mistake(
        "begins or ends the keys one token off",
        "Token i of the chunk has position s - t + i. It attends to the keys 0 to s - t + i, its "
        "own included, and to none after it.",
        hint=3,
        function=ATTEND,
        formula=[one_off(1), one_off(-1)],
        made_by=patch(MASK, MASK.replace("[:, None]", "[:, None] + 1")),
    ),
    Mistake(
        "attends to later tokens of the chunk",
        "With a single query no key is later, so decoding needs no mask. A chunk has several "
        "queries, and all but the last must not see what follows.",
        function=ATTEND,
        formula=lambda q, k, v: attention(q, k, v),
        made_by=patch(MASK, "is_later_ts = position_s > s + 0 * position_t[:, None]"),
    ),
    Mistake(
        "attends to the chunk only",
        "The chunks before are part of the prompt: their keys are in the cache, and each later "
        "token attends to them.",
        function=ATTEND,
        formula=lambda q, k, v: attention(
            q, k[:, -q.shape[1] :], v[:, -q.shape[1] :], is_causal=True
        ),
        made_by=patch(MASK, f"{MASK}\n    is_later_ts = is_later_ts | (position_s < s - t)"),
    ),
]

GRADER = Questions(
    name="chunked_prefill",
    functions=FUNCTIONS,
    cases=cases,
    right=right,
    same=lambda got, right, case: close(got, right, case, steps=32),
    mistakes=MISTAKES,
    closed=("labkit.serving",),
    describe=describe,
    fault=lambda s: OTHER_CHUNKS(s) if s.case.function == PLAN else None,
    shown="every answer gets a token from each pass, however long the prompts are, no pass "
    "computes more than its budget, and chunks attend as the whole prompt does",
)
