"""Drills on serving many requests: pages, batches, speculation, shared prompts, fewer bits."""

from math import ceil

from labkit import calc
from labkit.interview.drills.drill import PEAKS, Shown, billions, drill, num_text
from labkit.interview.drills.question import Solution, Trap


@drill(
    "in-2",
    "Requests in a paged cache",
    difficulty=1,
    notebook="23_one_request_and_its_cache",
    prompt="A cache has {slots} slots, in pages of {page_size}. Each request has {tokens} tokens "
    "now, and may have {longest} in the end. How many such requests fit now, if a page is taken "
    "when it is needed?",
    draws={
        "slots": (16_384, 20_480, 32_768, 40_960, 65_536),
        "page_size": (16, 32, 64),
        "tokens": (205, 300, 330, 420, 530, 650, 777, 900),
        "longest": (1024, 2048, 4096),
    },
    unit="",
    digits=None,
    between=("8", "400"),
)
def requests_in_pages(slots: int, page_size: int, tokens: int, longest: int) -> Solution:
    """Pages of the cache over pages of a request, rounded down."""
    pages, each = slots // page_size, ceil(tokens / page_size)
    return Solution(
        pages // each,
        [
            f"The cache has {slots:,} / {page_size} = {pages:,} pages.",
            f"{tokens} / {page_size} = {tokens / page_size:.2f}, so a request holds {each} pages.",
            f"{pages:,} / {each} = {pages / each:.2f}: {pages // each} requests.",
        ],
        [
            Trap(
                "a region for the longest answer",
                slots // longest,
                "A paged cache reserves nothing for tokens that may come.",
            ),
            Trap("tokens counted", slots // tokens, "A request holds whole pages."),
            Trap(
                "pages rounded down",
                pages // (tokens // page_size),
                "The tokens beyond the last full page need a page, too.",
            ),
        ],
    )


@drill(
    "in-3",
    "Useful places of static batches",
    difficulty=1,
    notebook="24_many_requests_at_once",
    prompt="Requests want {lengths} tokens, again and again in this order. A server runs static "
    "batches of four, each until its longest answer ends. What share of the places in its passes "
    "makes a token that somebody wants?",
    draws={
        "lengths": [
            Shown(each, "{}, {}, {} and {}".format(*each))
            for each in (
                *((10, 20, 30, 100), (50, 60, 70, 80), (5, 10, 25, 200), (30, 40, 50, 60)),
                *((8, 16, 64, 128), (20, 80, 100, 250), (10, 12, 15, 90), (100, 150, 200, 500)),
                *((40, 45, 90, 120), (16, 32, 48, 160), (25, 50, 75, 300), (60, 70, 110, 140)),
                *((12, 36, 60, 180), (15, 45, 55, 65), (90, 120, 160, 400), (35, 55, 95, 220)),
            )
        ]
    },
    unit="%",
    between=("5%", "95%"),
)
def useful_places(lengths: tuple[int, ...]) -> Solution:
    """Return the mean length over the longest."""
    total, longest, num = sum(lengths), max(lengths), len(lengths)
    return Solution(
        total / (num * longest),
        [
            f"A batch takes {longest} passes with {num} places: {num * longest:,} places.",
            f"Its answers have {total:,} tokens.",
            f"{total:,} / {num * longest:,} = {total / (num * longest):.1%}.",
        ],
        [
            Trap(
                "idle places",
                1 - total / (num * longest),
                "That is the share of places that make no token.",
            ),
            Trap(
                "shortest over longest",
                min(lengths) / longest,
                "Each answer fills its place until its own end. It is the mean that counts.",
            ),
            Trap(
                "the longest answer's share of all tokens",
                longest / total,
                "Compare all tokens with all places.",
            ),
        ],
    )


@drill(
    "in-3",
    "The largest chunk beside decoding",
    difficulty=2,
    notebook="24_many_requests_at_once",
    prompt="A model with {params} parameters decodes {batch} requests on one {gpu} of {peak} "
    "TFLOP/s. A pass may take {target} ms, since all of them wait for it. How many tokens of a "
    "prompt can it compute besides? Take it as bound by arithmetic at its peak, without "
    "attention's scores.",
    draws={
        "params": billions(7, 8, 9, 12, 13, 14),
        "batch": (64, 96, 128, 160, 192),
        "gpu peak": PEAKS,
        "target": (30, 40, 50, 60),
    },
    unit="",
    between=("100", "5000"),
    where=lambda params, batch, peak, target: peak * 1e9 * target > 6 * params * (batch + 10),
)
def largest_chunk(params: float, batch: int, peak: float, target: float) -> Solution:
    """peak t / 2N, less a token of each that decodes."""

    def chunk(flops: int) -> float:
        return peak * 1e12 * target / 1e3 / (flops * params) - batch

    return Solution(
        chunk(2),
        [
            f"A token takes 2 x {params / 1e9:g}B FLOP = {2 * params / 1e9:g} GFLOP.",
            f"{target} ms at {peak:,} TFLOP/s are {peak * target / 1e3:.3g} TFLOP: "
            f"{chunk(2) + batch:,.0f} tokens.",
            f"{batch} of them are those that decode: {chunk(2):,.0f} are left for the prompt.",
        ],
        [
            Trap(
                "those that decode forgotten",
                chunk(2) + batch,
                "Each request that decodes computes a token in the pass, too.",
            ),
            Trap("training's 6 FLOP", chunk(6), "A forward pass takes 2 per parameter."),
            Trap(
                "one FLOP for each parameter",
                chunk(1),
                "A parameter is multiplied, and the product is added: 2 FLOP.",
            ),
        ],
    )


@drill(
    "in-6",
    "Speed-up by speculative decoding",
    difficulty=2,
    notebook="24_many_requests_at_once",
    prompt="A draft model proposes {drafts}, and the large model checks them in one pass, which "
    "takes as long as a pass over one token. Each drafted token is accepted with probability "
    "{acceptance}, independently. A pass of the draft model takes {cost} of a pass of the large "
    "one. How many times as fast is a request as without drafts?",
    draws={
        "drafts": tuple(Shown(num, num_text(num, "token")) for num in (2, 3, 4, 5, 6, 8)),
        "acceptance": tuple(Shown(of, f"{of:.0%}") for of in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9)),
        "cost": tuple(Shown(of, f"{of:.0%}") for of in (0.02, 0.05, 0.1, 0.15, 0.2)),
    },
    unit="x",
    between=("0.5", "6"),
)
def speculative_gain(drafts: int, acceptance: float, cost: float) -> Solution:
    """Tokens of a pass over its time."""
    tokens = float(calc.speculative_tokens(acceptance, drafts))
    time = 1 + drafts * cost
    return Solution(
        calc.speculative_speedup(acceptance, drafts, cost),
        [
            f"Tokens of a pass: 1 + a + ... + a^{drafts} = (1 - a^{drafts + 1}) / (1 - a) = "
            f"{tokens:.3g}.",
            f"Time: {drafts} passes of the draft model and one of the large one, "
            f"1 + {drafts} x {cost:g} = {time:.3g}.",
            f"{tokens:.3g} / {time:.3g} = {tokens / time:.3g}.",
        ],
        [
            Trap("the drafts for free", tokens, "The draft model's passes take time, too."),
            Trap(
                "accepted drafts only",
                (tokens - 1) / time,
                "The large model gives one token of its own in each pass.",
            ),
            Trap(
                "every draft counted with a",
                (1 + drafts * acceptance) / time,
                "A draft counts only if all drafts before it were accepted: a, a^2, a^3 and so on.",
            ),
            Trap(
                "one pass of the draft model",
                tokens / (1 + cost),
                "The draft model makes one token in a pass, as the large one does.",
            ),
        ],
    )


@drill(
    "in-6",
    "Prompts that begin alike",
    difficulty=2,
    notebook="24_many_requests_at_once",
    prompt="{requests} requests begin with the same {prefix} tokens; each goes on with {own} of "
    "its own. The cache has pages of {page} tokens, and full pages are shared by prefix. The first "
    "request is in the cache when the others come. How many tokens of prompts are computed in all?",
    draws={
        "requests": (8, 10, 16, 20, 32, 50, 64, 100),
        "prefix": (250, 300, 500, 700, 1000, 1500, 2000),
        "own": (20, 40, 60, 100, 150),
        "page": (16, 32, 64, 128),
    },
    unit="",
    digits=None,
    between=("500", "50000"),
    where=lambda prefix, page: prefix % page > 0,
)
def shared_prompt_tokens(requests: int, prefix: int, own: int, page: int) -> Solution:
    """Return all of the first prompt; of each other one, what is behind the full pages."""
    shared = prefix // page * page
    each = prefix - shared + own
    computed = prefix + own + (requests - 1) * each
    return Solution(
        computed,
        [
            f"Full pages of the prefix: {prefix} // {page} = {prefix // page}, so {shared:,} "
            "tokens are shared.",
            f"Each of the other requests computes {prefix} - {shared} + {own} = {each} tokens.",
            f"{prefix} + {own} + {requests - 1} x {each} = {computed:,}.",
        ],
        [
            Trap(
                "the whole prefix shared",
                prefix + requests * own,
                "A page that is not full at the prefix's end has tokens of one request only.",
            ),
            Trap(
                "the first request shares, too",
                requests * each,
                "One request has to compute the prefix.",
            ),
            Trap("nothing shared", requests * (prefix + own), "Full pages are computed once."),
        ],
    )


@drill(
    "in-5",
    "Bytes of quantised weights",
    difficulty=1,
    notebook="23_one_request_and_its_cache",
    prompt="{params} weights are stored in {bits}, with a scale of 16 bits for every {group}. How "
    "much memory do they take?",
    draws={
        "params": billions(1.3, 3, 7, 8, 13, 14, 32, 34, 70, 72, 180),
        "bits": tuple(Shown(num, num_text(num, "bit")) for num in (3, 4, 8)),
        "group": tuple(Shown(num, num_text(num, "weight")) for num in (16, 32, 64)),
    },
    unit="GB",
    digits=3,
    between=("0.3 GB", "250 GB"),
)
def quantised_bytes(params: float, bits: int, group: int) -> Solution:
    """N (b + 16 / g) / 8."""
    each = bits + 16 / group
    nbytes = float(calc.model_state_bytes(params, _weights_of(each), zero=0, dp=1))
    return Solution(
        nbytes,
        [
            f"A weight takes {bits} bits and its share of a scale, 16 / {group} = "
            f"{16 / group:g}: {each:g} bits.",
            f"{params / 1e9:g} x 10^9 x {each:g} / 8 = {calc.bytes_text(nbytes)}.",
        ],
        [
            Trap("no scales", nbytes * bits / each, "Each group has a scale beside its codes."),
            Trap(
                "a scale for each weight",
                nbytes * (bits + 16) / each,
                "The weights of a group share one scale.",
            ),
            Trap(
                "GiB for GB",
                nbytes / calc.units.GiB * calc.units.GB,
                "A GB is 10^9 bytes; divided by 2^30 it is GiB.",
            ),
            Trap("scales of 32 bits", nbytes * (each + 16 / group) / each, "A scale has 16 bits."),
            Trap("bits for bytes", nbytes * 8, "Eight bits are a byte."),
        ],
    )


def _weights_of(bits: float) -> calc.Recipe:
    return calc.Recipe(name="weights", parameter_bytes=bits / 8, gradient_bytes=0)
