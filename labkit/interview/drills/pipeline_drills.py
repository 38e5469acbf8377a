"""Drills on pipelines: the bubble by both conventions, what is in flight, what is sent."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.numbers import BATCHES, amounts, num_text
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "09_pipeline_parallel"
_STAGES = (4, 6, 8, 10, 12, 16)


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
                "What counts is how long the way to the last stage and back is.",
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
    "What a stage sends",
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
