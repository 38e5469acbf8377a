"""Drills on bandwidth: algbw and busbw, data sheets, bits and bytes."""

from labkit import calc
from labkit.interview.drills.drill import amounts, drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "02_all_reduce_inside_out"
_SHEETS = [
    ("NVLink 3", sheet) for sheet in amounts("600 GB/s")
] + [("NVLink 4", sheet) for sheet in amounts("900 GB/s")] + [
    ("NVLink 5", sheet) for sheet in amounts("1800 GB/s")
]  # fmt: skip


@drill(
    "co-9",
    "Bus bandwidth of an all-reduce",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="An all-reduce of {size} over {n} GPUs takes {time}. What is its busbw, as nccl-tests "
    "prints it?",
    draws={
        "n": (4, 8, 16),
        "size": amounts("512 MB", "1 GB", "2 GB", "4 GB", "8 GB"),
        "time": amounts(*(f"{ms} ms" for ms in (6, 9, 14, 22, 36, 55, 84, 130))),
    },
    unit="GB/s",
    digits=3,
    between=("15 GB/s", "460 GB/s"),
)
def bus_bandwidth(n: int, size: float, time: float) -> Solution:
    """algbw times 2(n-1)/n."""
    algbw, busbw = calc.algbw(size, time), calc.busbw(size, time, n)
    factor = calc.collective("all_reduce", "ring", n).sent_bytes
    return Solution(
        busbw,
        [
            f"algbw = {calc.bytes_text(size)} / {calc.seconds_text(time)} = {algbw}.",
            f"Each link carries 2(n - 1)/n = {factor:.4g} times the tensor.",
            f"busbw = {factor:.4g} x {algbw} = {busbw}.",
        ],
        [
            Trap(
                "algbw",
                algbw,
                "That is the caller's bytes over the time; busbw counts what a link must carry.",
            ),
            Trap(
                "the factor of an all-gather",
                calc.busbw(size, time, n, "all_gather"),
                "An all-reduce is a reduce-scatter and an all-gather: its factor is twice that.",
            ),
            Trap("a factor of 2", 2 * algbw, "2(n - 1)/n is 2 only for very many ranks."),
            Trap("bits for bytes", 8 * busbw, "GB/s are bytes; Gbit/s are 8 times as many."),
        ],
    )


@drill(
    "co-9",
    "An all-gather at a known busbw",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="nccl-tests shows a busbw of {bus} for {n} GPUs. How long does an all-gather take there "
    "that ends with {size} on every GPU?",
    draws={
        "n": (4, 8, 16),
        "size": amounts("500 MB", "1 GB", "2 GB", "4 GB", "8 GB", "16 GB"),
        "bus": amounts("20 GB/s", "42 GB/s", "85 GB/s", "180 GB/s", "240 GB/s", "360 GB/s"),
    },
    unit="ms",
    digits=3,
    between=("1 ms", "1 s"),
)
def all_gather_at_busbw(n: int, size: float, bus: float) -> Solution:
    """(n-1)/n D over the bus bandwidth."""
    carried = calc.collective("all_gather", "ring", n, size).sent_bytes
    seconds = carried / bus
    return Solution(
        seconds,
        [
            f"An all-gather's bus factor is (n - 1)/n: a link carries "
            f"{n - 1}/{n} x {calc.bytes_text(size)} = {calc.bytes_text(carried)}.",
            f"{calc.bytes_text(carried)} / ({calc.bytes_text(bus)}/s) = "
            f"{calc.seconds_text(seconds)}.",
        ],
        [
            Trap(
                "the factor of an all-reduce",
                2 * carried / bus,
                "An all-gather is one of the two phases of a ring all-reduce.",
            ),
            Trap(
                "busbw read as algbw",
                size / bus,
                "A GPU has its own nth already, and receives only the others.",
            ),
            Trap(
                "the size taken for one rank's part",
                carried * n / bus,
                "The size is that of the gathered tensor, of which each rank brings an nth.",
            ),
        ],
    )


@drill(
    "co-9",
    "A data sheet's bandwidth",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A data sheet gives {name} as {sheet} for each GPU, both directions added up. At best, "
    "how long does a ring all-reduce of {size} over {n} GPUs take on it, latencies left out?",
    draws={
        "name sheet": _SHEETS,
        "n": (4, 6, 8),
        "size": amounts(
            *(
                "600 MB",
                "750 MB",
                "1 GB",
                "1.5 GB",
                "2 GB",
                "2.5 GB",
                "3 GB",
                "4 GB",
                "5 GB",
                "12 GB",
            )
        ),
    },
    unit="ms",
    between=("0.5 ms", "200 ms"),
)
def data_sheet_link(sheet: float, n: int, size: float) -> Solution:
    """2(n-1)/n D over half of what is printed."""
    seconds = calc.collective("all_reduce", "ring", n, size).seconds(0, 2 / sheet)
    return Solution(
        seconds,
        [
            f"One direction is half of it: {calc.bytes_text(sheet / 2)}/s.",
            f"A rank sends 2 x {n - 1}/{n} x {calc.bytes_text(size)} = "
            f"{calc.bytes_text(calc.collective('all_reduce', 'ring', n, size).sent_bytes)}.",
            f"At {calc.bytes_text(sheet / 2)}/s that takes {calc.seconds_text(seconds)}.",
        ],
        [
            Trap(
                "both directions counted as speed",
                calc.collective("all_reduce", "ring", n, size).seconds(0, 1 / sheet),
                "Data sheets of NVLink add both directions; a ring sends one way at half of that. "
                "(One of the two phases alone would take as long.)",
            ),
            Trap(
                "both directions, and one phase",
                calc.collective("reduce_scatter", "ring", n, size).seconds(0, 1 / sheet),
                "A ring sends one way, at half of the sheet's speed, and it sends twice: "
                "reduce-scatter and all-gather.",
            ),
            Trap(
                "the tensor once over the link",
                size * 2 / sheet,
                "Each rank sends 2(n - 1)/n of the tensor, not the tensor once.",
            ),
        ],
    )


@drill(
    "co-9",
    "Gbit/s of an adapter",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="Each GPU has an adapter of {gbit} Gbit/s. Without latencies, how long does a "
    "reduce-scatter of {size} per rank take on a ring of {n} such GPUs, one on each host?",
    draws={
        "gbit": (100, 200, 400, 800),
        "n": (4, 8, 16),
        "size": amounts("250 MB", "400 MB", "1 GB", "2.5 GB", "6 GB", "14 GB"),
    },
    unit="ms",
    digits=3,
    between=("2 ms", "2 s"),
)
def adapter_gbits(gbit: int, n: int, size: float) -> Solution:
    """(n-1)/n D over an eighth of the bits."""
    rate = gbit * 1e9 / 8
    seconds = calc.collective("reduce_scatter", "ring", n, size).seconds(0, 1 / rate)
    return Solution(
        seconds,
        [
            f"{gbit} Gbit/s are {calc.bytes_text(rate)}/s.",
            f"A reduce-scatter sends {n - 1}/{n} x {calc.bytes_text(size)} = "
            f"{calc.bytes_text(seconds * rate)}.",
            f"That takes {calc.seconds_text(seconds)}.",
        ],
        [
            Trap(
                "bits for bytes",
                seconds / 8,
                "Adapters are sold by bits per second; tensors are counted in bytes.",
            ),
            Trap(
                "an all-reduce",
                calc.collective("all_reduce", "ring", n, size).seconds(0, 1 / rate),
                "A reduce-scatter is the first half of a ring all-reduce.",
            ),
            Trap(
                "n instead of n - 1",
                seconds * n / (n - 1),
                "A rank does not send the chunk that it ends with.",
            ),
        ],
    )
