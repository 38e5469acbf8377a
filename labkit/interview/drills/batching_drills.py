"""Drills on batches of requests: pages that they hold, idle places, and chunks beside decoding."""

from math import ceil

from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.numbers import PEAKS, billions
from labkit.interview.drills.question import Solution, Trap


@drill(
    "in-2",
    "Requests in a paged cache",
    difficulty=1,
    notebook="16_one_request_and_its_cache",
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
    notebook="17_many_requests_at_once",
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
    """The mean length over the longest."""
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
                "Those are the places that make no token for anybody.",
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
    notebook="17_many_requests_at_once",
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
