"""Drills on data parallelism: batches, buckets, traffic of a step, slow ranks."""

import math

from labkit import calc
from labkit.calc.reliability import asynchronous_samples_per_s, synchronous_samples_per_s
from labkit.calc.traffic.cost import num_blocks
from labkit.interview.drills.drill import RANKS, Shown, amounts, billions, drill
from labkit.interview.drills.question import Solution, Trap

_THREE_RUNGS, _LARGE_BATCHES = "04_data_parallel", "05_large_batches"
_UNEQUAL = "30_unequal_machines"
_DRAWS = {
    "params": billions(1.3, 2.7, 3, 6.7, 7, 8, 13, 34),
    "n": RANKS,
    "k": (2, 4, 8, 16),
}


@drill(
    "dp-3",
    "Global batch of a layout",
    difficulty=1,
    notebook=_LARGE_BATCHES,
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
    notebook=_LARGE_BATCHES,
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
    notebook=_LARGE_BATCHES,
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
                "The batch is all that a step averages over, with accumulated microbatches.",
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
    notebook=_THREE_RUNGS,
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
                "The remaining gradients need a bucket too.",
            ),
            Trap(
                "the other precision",
                num_blocks(numel, other, cap * mib),
                "float32 has 4 bytes, bf16 has 2.",
            ),
        ],
    )


def _sent(strategy: str, params: float, n: int, k: int = 1) -> float:
    return float(calc.step_traffic_bytes(strategy, params, n, microbatches=k))


@drill(
    "dp-1",
    "Traffic of plain data parallelism",
    difficulty=1,
    notebook=_THREE_RUNGS,
    prompt="DDP trains {params} parameters on {n} GPUs; gradients travel in {bits}-bit numbers, on "
    "a ring. How much does each GPU send in a step?",
    draws={"params": _DRAWS["params"], "n": (4, 6, 8, 12, 16, 24, 32), "bits": (16, 32)},
    unit="GB",
    digits=3,
    between=("1 GB", "300 GB"),
)
def ddp_traffic(params: float, n: int, bits: int) -> Solution:
    """2(n-1)/n of the gradients' bytes."""
    size = bits // 8
    sent = float(calc.step_traffic_bytes("ddp", params, n, itemsize=size))
    return Solution(
        sent,
        [
            f"The gradients are {size} B x {params / 1e9:g}B = {calc.bytes_text(size * params)}.",
            f"A ring all-reduce sends 2 x {n - 1}/{n} of that: {calc.bytes_text(sent)}.",
        ],
        [
            Trap(
                "one phase instead of two",
                sent / 2,
                "An all-reduce is a reduce-scatter and an all-gather.",
            ),
            Trap("bits for bytes", sent * 8, "A byte has 8 bits."),
            Trap(
                "the gradients once",
                size * params,
                "A ring sends 2(n - 1)/n of them.",
            ),
            Trap(
                "a copy for every other rank",
                (n - 1) * size * params,
                "On a ring chunks are added up on their way: about twice the gradients are sent, "
                "however many ranks there are.",
            ),
        ],
    )


@drill(
    "dp-5",
    "Forgotten no_sync",
    difficulty=2,
    notebook=_LARGE_BATCHES,
    prompt="DDP accumulates {k} microbatches on {n} GPUs, {params} parameters, and nobody has "
    "written no_sync: every backward pass all-reduces the bf16 gradients on a ring. How much more "
    "does each GPU send in a step than it had to?",
    draws=_DRAWS,
    unit="GB",
    between=("1 GB", "3 TB"),
)
def forgotten_no_sync(params: float, n: int, k: int) -> Solution:
    """k - 1 all-reduces too many."""
    once = _sent("ddp", params, n)
    return Solution(
        (k - 1) * once,
        [
            f"One all-reduce sends 2 x {n - 1}/{n} x 2 B x {params / 1e9:g}B = "
            f"{calc.bytes_text(once)}.",
            f"One is needed, {k} are made: {k - 1} too many.",
            f"{k - 1} x {calc.bytes_text(once)} = {calc.bytes_text((k - 1) * once)}.",
        ],
        [
            Trap(
                "all of them, not what is too much",
                k * once,
                "The last all-reduce is needed: it is the others that are too many.",
            ),
            Trap(
                "one phase instead of two",
                (k - 1) * once / 2,
                "An all-reduce is a reduce-scatter and an all-gather.",
            ),
            Trap("what is needed", once, "That is the all-reduce that has to be there."),
        ],
    )


@drill(
    "dp-9",
    "One slow rank",
    difficulty=1,
    notebook=_THREE_RUNGS,
    prompt="{n} ranks train synchronously with {batch} samples each. All need {fast} for a step, "
    "but one needs {slow}. Communication is free. How many samples per second is that?",
    draws={
        "n": (4, 8),
        "batch": (16, 32, 64, 128),
        "fast": amounts("200 ms", "250 ms", "320 ms", "400 ms"),
        "slow": amounts("450 ms", "500 ms", "600 ms", "800 ms"),
    },
    unit="",
    digits=3,
    between=("50", "6000"),
)
def slow_rank(n: int, batch: int, fast: float, slow: float) -> Solution:
    """n B / the slowest time."""
    times = [fast] * (n - 1) + [slow]
    rate = float(synchronous_samples_per_s(times, batch))
    alone = float(synchronous_samples_per_s(times[:-1], batch))
    never = float(asynchronous_samples_per_s(times, batch))
    whole = float(synchronous_samples_per_s([fast] * n, batch))
    return Solution(
        rate,
        [
            "A step ends when the slowest rank has its gradients: everyone waits for "
            f"{calc.seconds_text(slow)}.",
            f"In it {n} x {batch} = {n * batch} samples are done.",
            f"{n * batch} / {slow:g} s = {rate:.4g} samples per second, "
            f"{rate / whole:.0%} of {whole:.4g} without the slow one.",
        ],
        [
            Trap(
                "each at its own pace",
                never,
                "That is asynchronous training; here the fast ranks wait.",
            ),
            Trap(
                "without the slow rank",
                alone,
                "Leaving it out would be faster, but it takes part, and all wait for it.",
            ),
            Trap("as if it were not there", whole, "One slow rank holds up every step."),
            Trap(
                "the mean of the times",
                n * batch * n / sum(times),
                "The step takes as long as its slowest rank, not as the mean.",
            ),
        ],
    )


@drill(
    "dp-7",
    "Waiting for most of the ranks",
    difficulty=2,
    notebook="06_asynchrony",
    prompt="{n} ranks with {batch} samples each. {late} of them need {slow} for a step, the others "
    "{fast}. A step takes the first {k} gradients that come, and drops the rest. How many samples "
    "per second count?",
    draws={
        "n late k": ((8, 1, 6), (8, 2, 6), (16, 1, 14), (16, 2, 14), (16, 3, 12), (32, 2, 28)),
        "batch": (16, 32, 64, 128),
        "fast": amounts("200 ms", "250 ms", "320 ms", "400 ms"),
        "slow": amounts("450 ms", "500 ms", "600 ms", "800 ms", "1.2 s"),
    },
    unit="",
    digits=3,
    between=("50", "30000"),
)
def backup_workers(n: int, late: int, k: int, batch: int, fast: float, slow: float) -> Solution:
    """k B / the k-th least time."""
    times = [fast] * (n - late) + [slow] * late
    rate = float(synchronous_samples_per_s(times, batch, wait_for=k))
    return Solution(
        rate,
        [
            f"{n - late} ranks are fast, and {k} gradients are enough: a step takes "
            f"{calc.seconds_text(fast)}.",
            f"{k} x {batch} = {k * batch} samples count in it.",
            f"{k * batch} / {fast:g} s = {rate:.4g} samples per second.",
        ],
        [
            Trap(
                "everyone waits",
                synchronous_samples_per_s(times, batch),
                "A step goes on when enough gradients are there; the slow ranks hold up nobody.",
            ),
            Trap(
                "all samples count",
                n * batch / fast,
                "The gradients that come too late are dropped, so their samples do not count.",
            ),
            Trap(
                "nobody waits",
                asynchronous_samples_per_s(times, batch),
                "That is fully asynchronous; here ranks wait for the first of each step.",
            ),
        ],
    )


@drill(
    "dp-13",
    "A step with shares by speed",
    difficulty=1,
    notebook=_UNEQUAL,
    prompt="{n} ranks share batches of {rows} rows, each rank in proportion to its speed. A row "
    "takes {fast}, and on the {late} slow of the ranks {slow}. Communication is free, and rows can "
    "be split. How long does a step take?",
    draws={
        "n late": ((4, 1), (8, 2), (8, 4), (16, 4), (16, 8)),
        "rows": (256, 512, 1024),
        "fast": amounts("3 ms", "4 ms", "5 ms"),
        "slow": amounts("8 ms", "10 ms", "12 ms", "15 ms"),
    },
    unit="seconds",
    digits=3,
    between=("20 ms", "10 s"),
)
def step_by_speed(n: int, late: int, rows: int, fast: float, slow: float) -> Solution:
    """All rows over the sum of the speeds."""
    times = [fast] * (n - late) + [slow] * late
    speed = float(asynchronous_samples_per_s(times, 1))  # nobody waits if all finish together
    seconds = rows / speed
    equal = rows / float(synchronous_samples_per_s(times, 1))
    return Solution(
        seconds,
        [
            "With shares in proportion to speed all ranks finish together, so their speeds add up.",
            f"{n - late} / {calc.seconds_text(fast)} + {late} / {calc.seconds_text(slow)} = "
            f"{speed:.4g} rows per second.",
            f"{rows} / {speed:.4g} = {calc.seconds_text(seconds)}. Equal shares take "
            f"{calc.seconds_text(equal)}.",
        ],
        [
            Trap(
                "equal shares",
                equal,
                "With rows / n on each rank all wait for the slow ones; here those get fewer.",
            ),
            Trap(
                "the mean of the times",
                rows / n * sum(times) / n,
                "Speeds add up, not times: a rank that is slow in seconds adds few rows.",
            ),
            Trap(
                "without the slow ranks",
                rows * fast / (n - late),
                "The slow ranks also compute rows, and the step gets shorter by that.",
            ),
        ],
    )


@drill(
    "dp-13",
    "The weight of a rank's loss",
    difficulty=2,
    notebook=_UNEQUAL,
    prompt="{n} ranks train with DDP, which averages gradients over the ranks. Sequences are "
    "partly masked: in this step {mine} of the {total} tokens that count in the loss are on "
    "rank 0. Its loss is the mean over its own tokens. By which factor does it multiply the loss "
    "before backward?",
    draws={
        "n": (4, 8, 16),
        "mine": (1500, 2600, 5100, 7300, 9700),
        "total": (40_000, 52_000, 78_000, 96_000),
    },
    unit="",
    digits=3,
    between=("0.05", "4"),
)
def weight_of_a_loss(n: int, mine: int, total: int) -> Solution:
    """n times the rank's part of the tokens."""
    part = mine / total
    return Solution(
        n * part,
        [
            f"The gradient of the batch weighs the rank by {mine:,} / {total:,} = {part:.4g}.",
            f"DDP divides the sum of gradients by {n}, so the loss is multiplied by {n} first.",
            f"{n} x {part:.4g} = {n * part:.4g}. With equal shares the factor is 1.",
        ],
        [
            Trap(
                "for a sum",
                part,
                f"Right for an all-reduce that sums. DDP divides by {n} as well, and the gradient "
                f"would be {n} times too small.",
            ),
            Trap(
                "no weight",
                1.0,
                "A mean of means is right only if all ranks have equally many tokens.",
            ),
            Trap(
                "upside down",
                total / (n * mine),
                "A rank with fewer tokens than the mean counts less, not more.",
            ),
        ],
    )
