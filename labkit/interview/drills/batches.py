"""Drills on batches: global batch, accumulation, learning rate, buckets, the slow rank."""

import math

from labkit import calc
from labkit.calc.traffic.cost import num_blocks
from labkit.interview.drills.drill import Shown, drill
from labkit.interview.drills.numbers import billions
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "03_data_parallel"


@drill(
    "dp-3",
    "Global batch of a layout",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="{gpus} GPUs train with tensor parallelism over {tp} and a pipeline of {pp} stages; all "
    "the rest is data parallel. A microbatch has {micro} sequences, and each replica accumulates "
    "{k} of them in a step. How many sequences is the global batch?",
    draws={
        "gpus": (64, 128, 256, 512, 1024, 2048),
        "tp": (2, 4, 8),
        "pp": (2, 4, 8),
        "micro": (2, 4),
        "k": (8, 16, 32, 64),
    },
    unit="",
    digits=None,
    between=("16", "100000"),
    where=lambda gpus, tp, pp: gpus // (tp * pp) > 1,
)
def global_batch(gpus: int, tp: int, pp: int, micro: int, k: int) -> Solution:
    """dp times microbatch times accumulation."""
    dp = calc.Layout(world_size=gpus, tp=tp, pp=pp).dp
    batch = dp * micro * k
    return Solution(
        batch,
        [
            f"A replica takes tp x pp = {tp * pp} GPUs, so there are {gpus} / {tp * pp} = {dp}.",
            f"Each works on {micro} x {k} = {micro * k} sequences in a step.",
            f"{dp} x {micro * k} = {batch:,}.",
        ],
        [
            Trap(
                "every GPU counted as a replica",
                gpus * micro * k,
                "GPUs of one tensor- or pipeline-parallel group work on the same sequences.",
            ),
            Trap(
                "accumulation left out",
                dp * micro,
                "The gradients of all accumulated microbatches go into one step.",
            ),
            Trap("of one replica", micro * k, "All replicas' gradients are averaged in a step."),
            Trap(
                "the pipeline counted as replicas",
                dp * pp * micro * k,
                "The stages of a pipeline see the same sequences, one after the other.",
            ),
        ],
    )


@drill(
    "dp-5",
    "Accumulation steps for a batch",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="The global batch shall be {batch} sequences. {gpus} GPUs train with tensor parallelism "
    "over {tp}, the rest is data parallel, and {micro} sequences fit into a microbatch. How many "
    "microbatches does each replica accumulate?",
    draws={
        "batch": (512, 768, 1024, 1536, 2048, 3072, 4096),
        "gpus": (32, 64, 96, 128, 256),
        "tp": (2, 4, 8),
        "micro": (2, 4, 8),
    },
    unit="",
    digits=None,
    between=("2", "2000"),
    where=lambda batch, gpus, tp, micro: batch % (gpus * micro) == 0,
)
def accumulation_steps(batch: int, gpus: int, tp: int, micro: int) -> Solution:
    """batch / (dp microbatch)."""
    layout = calc.Layout(world_size=gpus, tp=tp, microbatch=micro)
    num = layout.num_microbatches(batch)
    return Solution(
        num,
        [
            f"Replicas: {gpus} / {tp} = {layout.dp}.",
            f"All of them together take {layout.dp} x {micro} = {layout.dp * micro} sequences at "
            "once.",
            f"{batch:,} / {layout.dp * micro} = {num}.",
        ],
        [
            Trap(
                "every GPU counted as a replica",
                batch // (gpus * micro),
                "The GPUs of a tensor-parallel group work on the same sequences.",
            ),
            Trap(
                "sequences counted, not microbatches",
                batch // layout.dp,
                "A replica takes several sequences in each microbatch.",
            ),
            Trap(
                "as if there were one replica",
                batch // micro,
                "The replicas share the batch among them.",
            ),
        ],
    )


@drill(
    "dp-6",
    "Learning rate by linear scaling",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A learning rate of {rate} was right for a batch of {base}. Now {gpus} GPUs train, all "
    "data parallel, with {each} samples per GPU and {k} microbatches of that accumulated. Which "
    "learning rate does linear scaling give?",
    draws={
        "rate": (0.05, 0.1, 0.15, 0.2, 0.3, 0.4),
        "base": (256, 512),
        "gpus": (8, 12, 16, 24, 32, 40, 64),
        "each": (32, 64),
        "k": (2, 4),
    },
    unit="",
    between=("0.05", "50"),
    where=lambda base, gpus, each: gpus * each > base,
)
def linear_scaling(rate: float, base: int, gpus: int, each: int, k: int) -> Solution:
    """rate times global batch / base batch."""
    batch = gpus * each * k
    scaled = rate * batch / base  # as scaled_learning_rate, which would take torch with it
    return Solution(
        scaled,
        [
            f"The global batch is {gpus} x {each} x {k} = {batch:,}.",
            f"That is {batch / base:g} times the base batch of {base}.",
            f"{rate:g} x {batch / base:g} = {scaled:g}, reached by a warmup.",
        ],
        [
            Trap(
                "accumulation left out",
                rate * (batch // k) / base,
                "What one step averages over is the batch: accumulated microbatches belong to it.",
            ),
            Trap(
                "square-root scaling",
                rate * math.sqrt(batch / base),
                "That rule is used with adaptive optimizers; linear scaling was asked for.",
            ),
            Trap(
                "times the number of GPUs",
                rate * gpus,
                "It scales with the batch against the base batch, not with the GPUs alone.",
            ),
            Trap(
                "the batch of one GPU",
                rate * each * k / base,
                "Gradients are averaged over all GPUs.",
            ),
        ],
    )


@drill(
    "dp-2",
    "How many gradient buckets",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="The gradients of {params} parameters, {precision}, are packed into buckets of {cap} "
    "MiB (2^20 bytes each) without regard to where a tensor ends. How many buckets are there?",
    draws={
        "params": billions(0.124, 0.355, 0.774, 1.1, 1.3, 1.5, 1.56, 1.7, 2, 2.7, 3, 3.2, 4, 6.7),
        "precision": (Shown(4, "float32"), Shown(2, "bf16")),
        "cap": (25, 40, 50, 100),
    },
    unit="",
    digits=None,
    between=("5", "1000"),
)
def gradient_buckets(params: float, precision: int, cap: int) -> Solution:
    """Bytes over the bucket's, rounded up."""
    numel, mib = round(params), calc.units.MiB
    num = num_blocks(numel, precision, cap * mib)
    other = 6 - precision
    return Solution(
        num,
        [
            f"The gradients are {precision} x {numel:,} = {calc.bytes_text(precision * numel)}.",
            f"A bucket is {cap} x 2^20 = {cap * mib:,} B.",
            f"{precision * numel / (cap * mib):.3f}, rounded up: {num}.",
        ],
        [
            Trap(
                "MB for MiB",
                num_blocks(numel, precision, cap * calc.units.MB),
                "A MiB is 2^20 bytes, 4.9% more than a MB.",
            ),
            Trap(
                "rounded down",
                precision * numel // (cap * mib),
                "What is left over needs a bucket too.",
            ),
            Trap(
                "the other precision",
                num_blocks(numel, other, cap * mib),
                "float32 has 4 bytes, bf16 has 2.",
            ),
        ],
    )
