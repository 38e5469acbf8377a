"""Drills on FSDP that a compiler sees: a switch of FSDP2, buckets, gathers of 8 bits."""

from labkit import calc
from labkit.interview.drills.drill import billions, drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "29_a_compilers_view"


@drill(
    "ze-7",
    "Traffic with reshard_after_forward=m",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="fully_shard over {n} GPUs with reshard_after_forward={m}: {params} parameters, {k} "
    "microbatches in a step. Parameters and gradients travel in bf16, on rings. How much does each "
    "GPU send in a step?",
    draws={"params": billions(1.3, 7, 13, 34), "n": (16, 32, 64), "m": (4, 8), "k": (2, 4, 8)},
    unit="GB",
    digits=3,
    between=("5 GB", "4 TB"),
)
def reshard_traffic(params: float, n: int, m: int, k: int) -> Solution:
    """Gathers of backward stay among m ranks."""
    sent = calc.fsdp_traffic_bytes(params, n, m, microbatches=k)
    once = 2 * params
    return Solution(
        sent,
        [
            f"Once over all parameters is 2 B x {params / 1e9:g}B = {calc.bytes_text(once)}.",
            f"Forward gathers over {n} ranks: {n - 1}/{n} of it. Backward gathers over {m}: "
            f"{m - 1}/{m}. Gradients are reduced over {n}: {n - 1}/{n}.",
            f"The sum, {k} times: {sent}.",
        ],
        [
            Trap(
                "as reshard_after_forward=True",
                calc.fsdp_traffic_bytes(params, n, True, microbatches=k),
                "After forward a unit is sharded over m ranks only, so backward gathers less.",
            ),
            Trap(
                "as reshard_after_forward=False",
                calc.fsdp_traffic_bytes(params, n, False, microbatches=k),
                "A unit is still sharded after forward, over m ranks, and backward gathers it.",
            ),
            Trap(
                "everything over m ranks",
                calc.fsdp_traffic_bytes(params, m, True, microbatches=k),
                "Only the gather of backward stays among m ranks.",
            ),
            Trap(
                "gradients reduced once",
                calc.fsdp_traffic_bytes(params, n, m, microbatches=k, reduce_once=True),
                "By default each microbatch reduces. set_requires_gradient_sync(False) changes it.",
            ),
        ],
    )


@drill(
    "ze-7",
    "Collectives after bucketing",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A traced forward pass gathers {layers} layers of {count} parameters, each of {size} MB "
    "when whole. A pass joins gathers in order, into buckets of at most {bucket} MB. How many "
    "all-gathers are left?",
    draws={
        "layers": (12, 16, 24, 32),
        "count": (5, 7, 9, 11),
        "size": (7, 9, 12),
        "bucket": (25, 40),
    },
    unit="",
    digits=3,
    between=("5", "200"),
)
def bucketed_gathers(layers: int, count: int, size: int, bucket: int) -> Solution:
    """Whole parameters fill a bucket, across the borders of layers."""
    total, fit = layers * count, bucket // size
    left = len(calc.bucket_sizes([size] * total, bucket))
    return Solution(
        left,
        [
            f"{layers} x {count} = {total} gathers as traced.",
            f"A bucket of {bucket} MB holds {fit} whole parameters of {size} MB.",
            f"Buckets cross the borders of layers: {total} / {fit}, rounded up, is {left}.",
        ],
        [
            Trap(
                "a bucket for each layer",
                layers,
                "That is eager FSDP's unit. Buckets of a graph are cut by bytes, not by modules.",
            ),
            Trap(
                "buckets within layers",
                layers * -(-count // fit),
                "Buckets of a graph cross the borders of layers.",
            ),
            Trap("as traced", total, "Several parameters share one gather."),
            Trap(
                "by bytes alone",
                -(-total * size // bucket),
                "A parameter is not cut: the rest of a bucket that it does not fit stays empty.",
            ),
        ],
    )


@drill(
    "ze-7",
    "A gather in float8",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="{n} GPUs gather a weight of {rows} x {columns} in float8 on a ring. A rank's shard is "
    "codes and one float32 scale. How much does each GPU send?",
    draws={"n": (4, 8, 16, 32), "rows": (2048, 4096, 5120, 8192), "columns": (2048, 4096, 14336)},
    unit="MB",
    digits=3,
    between=("2 MB", "200 MB"),
)
def float8_gather(n: int, rows: int, columns: int) -> Solution:
    """A byte for each number of n - 1 shards."""
    sent = calc.gather_bytes(rows * columns, n, "float8")
    return Solution(
        sent,
        [
            f"The weight has {rows} x {columns} numbers of a byte: {rows * columns / 1e6:.1f} MB.",
            f"A ring passes {n - 1} of {n} shards on. The scales add {4 * (n - 1)} B.",
            f"Together {sent}.",
        ],
        [
            Trap(
                "bfloat16, cast behind the gather",
                calc.gather_bytes(rows * columns, n, "bfloat16"),
                "A cast behind the gather rounds as much and saves no byte.",
            ),
            Trap(
                "float32 shards",
                calc.gather_bytes(rows * columns, n, "float32"),
                "The shards are float32, but what travels are codes of a byte.",
            ),
            Trap("the shard only", float(sent) / (n - 1), "A ring passes n - 1 shards on."),
            Trap(
                "all shards instead of n - 1",
                float(sent) * n / (n - 1),
                "A rank does not send the shard that its neighbour had first.",
            ),
        ],
    )
