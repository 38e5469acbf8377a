"""Drills on the key-value cache: bytes of a token and a request, and the fastest token."""

from labkit import calc
from labkit.interview.drills.drill import Shown, amounts, billions, drill
from labkit.interview.drills.question import Solution, Trap

_SIZES = {
    "layers": (24, 28, 32, 36, 40, 48, 56, 64, 80, 96, 126),
    "heads kv_heads features": [
        (28, 4, 128),
        (32, 8, 128),
        (40, 8, 128),
        (64, 8, 128),
        (32, 4, 64),
        (64, 16, 128),
    ],
    "itemsize": (Shown(2, "bf16"), Shown(1, "fp8")),
}
_MODEL = (
    "A model has {layers} layers of full attention, with {heads} query heads and {kv_heads} "
    "key-value heads of {features} features; its KV cache is {itemsize}. "
)
# As the data sheets have them, and calc: name, bytes per second.
_MEMORIES = [
    (title, Shown(each.memory_bytes_per_s, f"{each.memory_bytes_per_s / 1e12:g} TB/s"))
    for title, each in (
        ("A100", calc.GPUS["a100-80g"]),
        ("H100", calc.GPUS["h100"]),
        ("H200", calc.GPUS["h200"]),
        ("B200", calc.GPUS["b200"]),
    )
]


def _of_a_token(layers: int, kv_heads: int, features: int, itemsize: int) -> float:
    """Return the cache bytes of one token; the model has only these heads."""
    config = calc.ModelConfig(
        layers=layers,
        hidden=kv_heads * features,
        heads=kv_heads,
        head_dim=features,
        vocab=1,
        context=1,
    )
    return float(calc.kv_cache_bytes_per_token(config, itemsize))


@drill(
    "in-2",
    "KV cache of a token",
    difficulty=1,
    notebook="23_one_request_and_its_cache",
    prompt=_MODEL + "How many bytes does one token of one sequence take?",
    draws=_SIZES,
    unit="KB",
    digits=3,
    between=("10 KB", "2 MB"),
)
def kv_bytes_of_a_token(
    layers: int, heads: int, kv_heads: int, features: int, itemsize: int
) -> Solution:
    """2 L G K b."""
    each = _of_a_token(layers, kv_heads, features, itemsize)
    return Solution(
        each,
        [
            f"A layer keeps {kv_heads} x {features} = {kv_heads * features:,} numbers for the key "
            "and as many for the value.",
            f"2 x {kv_heads * features:,} x {itemsize} B = {calc.bytes_text(each / layers)} a "
            "layer.",
            f"{layers} layers: {calc.bytes_text(each)}.",
        ],
        [
            Trap("keys only", each / 2, "A value is kept beside each key."),
            Trap(
                "query heads counted",
                _of_a_token(layers, heads, features, itemsize),
                "Only keys and values are kept, and groups of query heads share them.",
            ),
            Trap("one layer", each / layers, "Every layer has keys and values of its own."),
            Trap(
                "KiB for KB",
                each / calc.units.KiB * calc.units.KB,
                "A KB is 1000 bytes; divided by 1024 it is KiB.",
            ),
        ],
    )


@drill(
    "in-2",
    "KV cache of a request",
    difficulty=1,
    notebook="23_one_request_and_its_cache",
    prompt=_MODEL + "How much memory does a request of {tokens} tokens take, prompt and answer "
    "together?",
    draws={**_SIZES, "tokens": (2000, 4096, 6000, 8192, 16384, 32768, 131072)},
    unit="GB",
    digits=3,
    between=("0.05 GB", "100 GB"),
)
def kv_bytes_of_a_request(
    layers: int, heads: int, kv_heads: int, features: int, itemsize: int, tokens: int
) -> Solution:
    """2 L G K b for each token."""
    each = _of_a_token(layers, kv_heads, features, itemsize)
    return Solution(
        tokens * each,
        [
            f"A token takes 2 x {layers} x {kv_heads} x {features} x {itemsize} B = "
            f"{calc.bytes_text(each)}.",
            f"{tokens:,} tokens: {calc.bytes_text(tokens * each)}.",
        ],
        [
            Trap("keys only", tokens * each / 2, "A value is kept beside each key."),
            Trap(
                "query heads counted",
                tokens * _of_a_token(layers, heads, features, itemsize),
                "Only keys and values are kept, and groups of query heads share them.",
            ),
            Trap(
                "GiB for GB",
                tokens * each / calc.units.GiB * calc.units.GB,
                "A GB is 10^9 bytes; divided by 2^30 it is GiB.",
            ),
            Trap("one layer", tokens * each / layers, "Every layer has a cache of its own."),
        ],
    )


@drill(
    "in-2",
    "How many requests fit",
    difficulty=2,
    notebook="23_one_request_and_its_cache",
    prompt=_MODEL + "A server's GPUs have {memory} together (10^9 bytes a GB); the weights take "
    "{weights} of that, and nothing else does. How many requests of {tokens} tokens fit at once, "
    "without paging losses?",
    draws={
        **_SIZES,
        "memory weights": [
            tuple(amounts(memory, weights))
            for memory, weights in (
                ("80 GB", "16 GB"), ("80 GB", "26 GB"), ("160 GB", "68 GB"),
                ("320 GB", "141 GB"), ("640 GB", "141 GB"), ("640 GB", "406 GB"),
            )
        ],
        "tokens": (2000, 4096, 8192, 16384, 32768),
    },
    unit="",
    digits=None,
    between=("4", "3000"),
)  # fmt: skip
def requests_that_fit(
    layers: int,
    heads: int,
    kv_heads: int,
    features: int,
    itemsize: int,
    memory: float,
    weights: float,
    tokens: int,
) -> Solution:
    """Return the memory that weights leave, over a request's cache, rounded down."""
    each = tokens * _of_a_token(layers, kv_heads, features, itemsize)
    of_all_heads = tokens * _of_a_token(layers, heads, features, itemsize)
    room = memory - weights
    return Solution(
        int(room // each),
        [
            f"A token takes {calc.bytes_text(each / tokens)}, a request {calc.bytes_text(each)}.",
            f"The weights leave {calc.bytes_text(room)}.",
            f"{calc.bytes_text(room)} / {calc.bytes_text(each)} = {room / each:.3f}: "
            f"{int(room // each)} requests.",
        ],
        [
            Trap(
                "the weights forgotten",
                int(memory // each),
                "The weights are in the same memory.",
            ),
            Trap("rounded up", int(room // each) + 1, "The last one does not fit whole."),
            Trap(
                "query heads counted",
                int(room // of_all_heads),
                "Groups of query heads share their keys and values.",
            ),
            Trap("keys only", int(room // (each / 2)), "A value is kept beside each key."),
        ],
    )


@drill(
    "in-1",
    "The fastest token of a batch of one",
    difficulty=2,
    notebook="23_one_request_and_its_cache",
    prompt="{params} parameters in {itemsize} are split evenly over {tp} {gpu} GPUs, whose memory "
    "gives {bandwidth} each. With one request at a time every weight is read once for each token. "
    "How long does a token take at the least, communication and KV cache left out?",
    draws={
        "params": billions(7, 8, 13, 34, 70, 175),
        "itemsize": (Shown(2, "bf16"), Shown(1, "fp8")),
        "tp": (2, 4, 8),
        "gpu bandwidth": _MEMORIES,
    },
    unit="ms",
    between=("0.1 ms", "200 ms"),
)
def fastest_token(params: float, itemsize: int, tp: int, bandwidth: float) -> Solution:
    """Return the weights' bytes over all GPUs' memory bandwidth."""
    weights = calc.Recipe(name="weights", parameter_bytes=itemsize, gradient_bytes=0)
    share = float(calc.model_state_bytes(params, weights, zero=3, dp=tp))
    seconds = share / bandwidth
    return Solution(
        seconds,
        [
            f"Weights: {itemsize} B x {params / 1e9:g}B, over {tp} GPUs "
            f"{calc.bytes_text(share)} each.",
            f"{calc.bytes_text(share)} / ({calc.bytes_text(bandwidth)}/s) = "
            f"{calc.seconds_text(seconds)}.",
            f"So at most {1 / seconds:.3g} tokens per second for one request.",
        ],
        [
            Trap(
                "one GPU reads all",
                seconds * tp,
                "Each GPU reads its own part, all at the same time.",
            ),
            Trap(
                "the other precision",
                seconds * (3 - itemsize) / itemsize,
                "bf16 has 2 bytes, fp8 has 1.",
            ),
            Trap("bits for bytes", seconds * 8, "Memory bandwidth is in bytes per second."),
            Trap("float32 weights", seconds * 4 / itemsize, "The weights are kept in fewer bytes."),
        ],
    )
