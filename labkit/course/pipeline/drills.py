"""Drills on pipelines: the bubble of each schedule, microbatches in flight, bytes of a stage."""

from bisect import bisect_left

from labkit import calc
from labkit.interview.drills.drill import BATCHES, Shown, amounts, drill, num_text
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "16_pipeline_parallel"
_STAGES = (4, 6, 8, 10, 12, 16)
_MOST_MICROBATCHES = 4096
_MICROBATCHES = (4, 8, 12, 16, 24, 32, 48, 64)


def share_of_bubble(
    stages: int, num: int, schedule: str = "1f1b", of: str = "total", v: int = 1
) -> float:
    """Return the bubble's share of the total or the ideal time, with v virtual stages on each
    rank."""
    return float(calc.bubble_fraction(stages, num, schedule, v, of))


@drill(
    "pp-2",
    "Bubble as a share of the step",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs {schedule} with {m} microbatches. For which share "
    "of the TOTAL time of a step is a stage idle?",
    draws={
        "p": _STAGES,
        "m": _MICROBATCHES,
        "schedule": (Shown("1f1b", "1F1B"), Shown("gpipe", "GPipe")),
    },
    unit="%",
    digits=3,
    between=("4%", "85%"),
)
def bubble_of_total(p: int, m: int, schedule: str) -> Solution:
    """(p-1)/(m+p-1)."""
    share, ideal = share_of_bubble(p, m, schedule), share_of_bubble(p, m, schedule, "ideal")
    return Solution(
        share,
        [
            f"Filling and draining take p - 1 = {p - 1} microbatches' time; work takes {m}.",
            f"A step lasts {m} + {p - 1} = {m + p - 1} of them.",
            f"{p - 1}/{m + p - 1} = {100 * share:.3g}%; of the ideal time it would be "
            f"{100 * ideal:.3g}%.",
        ],
        [
            Trap(
                "relative to ideal time, not to total",
                ideal,
                "(p - 1)/m compares with the time without a bubble; of the step's whole time it is "
                "less.",
            ),
            Trap(
                "p for p - 1",
                share_of_bubble(p + 1, m, schedule),
                "The first stage waits for the p - 1 others, not for itself.",
            ),
            Trap(
                "interleaved with two virtual stages",
                (p - 1) / (2 * m + p - 1),
                "That form is of a schedule with two stages on each rank.",
            ),
            Trap("the share of work", 1 - share, "The question is the time that is lost."),
        ],
    )


@drill(
    "pp-2",
    "Bubble relative to ideal time",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs 1F1B with {m} microbatches. How large is the bubble "
    "relative to the IDEAL time, in which nobody ever waits?",
    draws={"p": _STAGES, "m": (*_MICROBATCHES, 20, 40, 96)},
    unit="%",
    digits=3,
    between=("5%", "400%"),
)
def bubble_of_ideal(p: int, m: int) -> Solution:
    """(p-1)/m."""
    ideal, share = share_of_bubble(p, m, of="ideal"), share_of_bubble(p, m)
    return Solution(
        ideal,
        [
            f"The ideal time is that of {m} microbatches.",
            f"The bubble is p - 1 = {p - 1} microbatches long.",
            f"{p - 1}/{m} = {100 * ideal:.3g}%; of the total it is {100 * share:.3g}%.",
        ],
        [
            Trap(
                "relative to total time, not to ideal",
                share,
                "(p - 1)/(m + p - 1) compares with the whole step, bubble included.",
            ),
            Trap(
                "p for p - 1",
                share_of_bubble(p + 1, m, of="ideal"),
                "A pipeline of one stage has no bubble: p - 1.",
            ),
            Trap(
                "microbatches over stages",
                m / (p - 1),
                "More microbatches make the bubble smaller, not larger.",
            ),
        ],
    )


@drill(
    "pp-6",
    "Microbatches for a small bubble",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs 1F1B. How many microbatches does it need, at least, so "
    "that the bubble is at most {percent}% of the TOTAL time?",
    draws={"p": _STAGES, "percent": (5, 8, 10, 12, 15, 20, 25, 30)},
    unit="",
    digits=None,
    between=("6", "400"),
)
def microbatches_for_bubble(p: int, percent: int) -> Solution:
    """Return the least m with (p-1)/(m+p-1) at most x."""
    least = _least_microbatches(p, percent / 100)
    return Solution(
        least,
        [
            f"(p - 1)/(m + p - 1) <= {percent}% means m + p - 1 >= {p - 1}/{percent}% = "
            f"{100 * (p - 1) / percent:.4g}.",
            f"m >= {100 * (p - 1) / percent - (p - 1):.4g}, so {least}: "
            f"{100 * share_of_bubble(p, least):.3g}%.",
            f"With {least - 1} it would be {100 * share_of_bubble(p, least - 1):.3g}%.",
        ],
        [
            Trap(
                "relative to ideal time, not to total",
                _least_microbatches(p, percent / 100, "ideal"),
                "(p - 1)/m is the bubble relative to the time without it.",
            ),
            Trap("one too few", least - 1, "Then the bubble is larger than allowed."),
            Trap(
                "p for p - 1",
                _least_microbatches(p + 1, percent / 100),
                "The bubble is p - 1 microbatches long.",
            ),
        ],
    )


def _least_microbatches(p: int, share: float, of: str = "total") -> int:
    """By halving what is left: more microbatches, a smaller bubble. Met exactly is met."""
    return (
        bisect_left(
            range(1, _MOST_MICROBATCHES),
            True,
            key=lambda m: share_of_bubble(p, m, of=of) <= share + 1e-12,
        )
        + 1
    )


@drill(
    "pp-4",
    "Bubble of an interleaved schedule",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A pipeline over {p} ranks is interleaved, {v} virtual stages on each rank, and takes "
    "{m} microbatches. Which share of the TOTAL time of a step is bubble?",
    draws={"p": (4, 8, 12, 16), "v": (2, 3, 4, 6), "m": (8, 16, 24, 32, 48, 64)},
    unit="%",
    digits=3,
    between=("1%", "60%"),
    where=lambda p, m: m % p == 0,
)
def interleaved_bubble(p: int, v: int, m: int) -> Solution:
    """(p-1)/(v m + p - 1)."""
    share = share_of_bubble(p, m, "interleaved", v=v)
    ideal = share_of_bubble(p, m, "interleaved", "ideal", v)
    return Solution(
        share,
        [
            f"A virtual stage takes 1/{v} of a stage's time: the bubble is {p - 1}/{v} "
            "microbatches long.",
            f"Relative to ideal time: {p - 1}/({v} x {m}) = {100 * ideal:.3g}%.",
            f"Relative to the total: {p - 1}/({v} x {m} + {p - 1}) = {100 * share:.3g}%.",
        ],
        [
            Trap(
                "relative to ideal time, not to total",
                ideal,
                "(p - 1)/(v m) compares with the time without a bubble.",
            ),
            Trap(
                "not interleaved",
                share_of_bubble(p, m),
                "Virtual stages are shorter, so the pipeline fills v times as fast.",
            ),
            Trap(
                "the plain share divided by v",
                share_of_bubble(p, m) / v,
                "The bubble is divided by v, and the step gets shorter with it.",
            ),
            Trap(
                "v p stages",
                share_of_bubble(v * p, m),
                "Virtual stages share a rank: filling takes p - 1 of them, not v p - 1.",
            ),
        ],
    )


@drill(
    "pp-4",
    "Bubble of a zero-bubble schedule",
    difficulty=3,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs ZB-H1 with {m} microbatches; forward, input gradient and "
    "weight gradient take equally long. Which share of the TOTAL time of a step is bubble?",
    draws={"p": (4, 6, 7, 8, 9, 10, 12, 14, 16), "m": (8, 12, 16, 20, 24, 32, 40, 48, 64)},
    unit="%",
    digits=3,
    between=("1%", "40%"),
    where=lambda p, m: m >= p,
)
def zero_bubble_share(p: int, m: int) -> Solution:
    """(p-1)/(3m + p - 1)."""
    share, ideal = share_of_bubble(p, m, "zb_h1"), share_of_bubble(p, m, "zb_h1", "ideal")
    return Solution(
        share,
        [
            "Weight gradients wait until the bubble, and fill two thirds of it.",
            f"Relative to ideal time (p - 1)/(3 m) = {100 * ideal:.3g}% is left.",
            f"Relative to the total: {p - 1}/({3 * m} + {p - 1}) = {100 * share:.3g}%; 1F1B has "
            f"{100 * share_of_bubble(p, m):.3g}%.",
        ],
        [
            Trap(
                "as 1F1B",
                share_of_bubble(p, m),
                "ZB-H1 splits backward and puts weight gradients into the bubble.",
            ),
            Trap(
                "relative to ideal time, not to total",
                ideal,
                "(p - 1)/(3 m) compares with the time without a bubble.",
            ),
            Trap(
                "a third of 1F1B's share",
                share_of_bubble(p, m) / 3,
                "A third of the bubble is left, and the step is shorter, too.",
            ),
        ],
    )


@drill(
    "pp-3",
    "Microbatches in flight under 1F1B",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages runs 1F1B with {m} microbatches. Of how many microbatches "
    "does stage {stage}, counted from 0, hold activations at once, at most?",
    draws={"p": (4, 6, 8, 10, 12, 16), "stage": (0, 1, 2, 3, 4, 5, 6, 8), "m": (24, 32, 48, 64)},
    unit="",
    digits=None,
    between=("1", "16"),
    where=lambda p, stage: stage < p,
)
def in_flight(p: int, stage: int, m: int) -> Solution:
    """p - stage."""
    held = calc.in_flight_microbatches(p, m)
    return Solution(
        held[stage],
        [
            f"Stage {stage} has {num_text(p - 1 - stage, 'stage')} after it: so many forwards of "
            "warmup.",
            "Then forward and backward take turns, one more in flight.",
            f"{p - 1 - stage} + 1 = {held[stage]}; by stage {held}.",
        ],
        [
            Trap(
                "as GPipe",
                calc.in_flight_microbatches(p, m, "gpipe")[stage],
                "GPipe holds all microbatches; 1F1B begins backward as soon as it can.",
            ),
            Trap(
                "the stages before it",
                stage + 1,
                "The length of the way to the last stage and back counts.",
            ),
            Trap(
                "its own left out",
                held[stage] - 1,
                "In the steady phase one more is forwarded before each backward.",
            ),
            Trap(
                "as the first stage",
                held[0],
                "Each later stage holds one fewer.",
            ),
        ],
    )


@drill(
    "pp-3",
    "Memory of activations, GPipe against 1F1B",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="One microbatch's activations take {each} on a stage. A pipeline of {p} stages has {m} "
    "microbatches in a step. How much less memory do they take on the FIRST stage with 1F1B than "
    "with GPipe?",
    draws={
        "each": amounts("150 MB", "300 MB", "500 MB", "800 MB", "1.2 GB"),
        "p": (4, 6, 8),
        "m": (16, 24, 32, 48, 64),
    },
    unit="GB",
    digits=3,
    between=("0.5 GB", "80 GB"),
)
def one_f_one_b_saving(each: float, p: int, m: int) -> Solution:
    """(m - p) microbatches."""
    gpipe = calc.in_flight_microbatches(p, m, "gpipe")[0] * each
    ours = calc.in_flight_microbatches(p, m)[0] * each
    return Solution(
        gpipe - ours,
        [
            f"GPipe holds all {m}: {calc.bytes_text(gpipe)}.",
            f"1F1B holds {p} on the first stage: {calc.bytes_text(ours)}.",
            f"The difference is {calc.bytes_text(gpipe - ours)}.",
        ],
        [
            Trap("what GPipe takes", gpipe, "1F1B still holds as many as there are stages."),
            Trap("what 1F1B takes", ours, "The question is the difference."),
            Trap(
                "one in flight",
                gpipe - each,
                "That is so on the last stage only; the first has p in flight.",
            ),
            Trap(
                "GiB for GB",
                (gpipe - ours) / calc.units.GiB * calc.units.GB,
                "A GB is 10^9 bytes; divided by 2^30 it is GiB.",
            ),
        ],
    )


@drill(
    "pp-1",
    "Traffic of a stage",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A pipeline of {p} stages, {hidden} hidden features, bf16. In a step it takes {m} "
    "microbatches of {micro} of {seq} tokens. How many bytes does a rank in the MIDDLE of the "
    "pipeline send in a step?",
    draws={
        "p": (4, 8, 16),
        "hidden": (4096, 5120, 8192, 12288),
        "m": (8, 16, 32, 64),
        "micro": BATCHES,
        "seq": (2048, 4096),
    },
    unit="GB",
    between=("0.2 GB", "200 GB"),
)
def stage_bytes(p: int, hidden: int, m: int, micro: int, seq: int) -> Solution:
    """Outputs forward and gradients back."""
    tokens = m * micro * seq
    sent = calc.pipeline_traffic_bytes(tokens, hidden, p, rank=1)
    return Solution(
        sent,
        [
            f"A step has {m} x {micro} x {seq:,} = {tokens:,} tokens.",
            f"Their outputs go to the next stage: {sent['outputs']}.",
            f"Gradients of its inputs go to the stage before: {sent['gradients']}.",
            f"Together {sent}.",
        ],
        [
            Trap(
                "forward only",
                sent["outputs"],
                "Backward sends as much the other way.",
            ),
            Trap(
                "one microbatch",
                float(sent) / m,
                "All microbatches of the step pass each boundary.",
            ),
            Trap("float32 numbers", 2 * float(sent), "A bf16 number has 2 bytes."),
            Trap("bits for bytes", 8 * float(sent), "A byte has 8 bits."),
        ],
    )
