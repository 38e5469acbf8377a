"""Drills on all-reduces: the ring, trees, two tiers of links, many small tensors."""

from functools import cache

from labkit import calc
from labkit.calc.choice import predicted_crossing
from labkit.interview.drills.drill import LATENCIES, LINKS, amounts, drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "02_all_reduce_inside_out"
_HOSTS = "03_hosts_and_nccl"
_TWO_TIERS = {
    "hosts": (2, 4, 8, 16, 32),
    "per_host": (4, 8),
    "fast link": [
        (fast, link)
        for fast in amounts("300 GB/s", "450 GB/s")
        for link in amounts("25 GB/s", "50 GB/s")
    ],
}


@drill(
    "co-2",
    "Bytes of a ring all-reduce",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="{n} ranks all-reduce a tensor of {size} on a ring. How many bytes does each rank send?",
    draws={
        "n": (3, 4, 5, 6, 8, 10, 12, 16, 24),
        "size": amounts(
            *(f"{mb} MB" for mb in (24, 36, 48, 60, 72, 96, 120, 180, 240, 400, 600, 960))
        ),
    },
    unit="MB",
    digits=3,
    between=("1 MB", "2 GB"),
)
def ring_sent_bytes(n: int, size: float) -> Solution:
    """2(n-1)/n D."""
    ring = calc.collective("all_reduce", "ring", n, size)
    sent = ring.sent_bytes
    return Solution(
        sent,
        [
            f"A chunk is {calc.bytes_text(size / n)}, one of {n}.",
            f"Reduce-scatter and all-gather take {n - 1} steps each, "
            f"{ring.steps} together, and each sends one chunk.",
            f"{ring.steps} x {calc.bytes_text(size / n)} = {calc.bytes_text(sent)}.",
        ],
        [
            Trap(
                "one phase instead of two",
                sent / 2,
                "A reduce-scatter alone leaves each rank with one chunk; the all-gather sends "
                "as much again.",
            ),
            Trap(
                "n instead of n - 1",
                sent * n / (n - 1),
                "A rank never sends the chunk that it ends with: n - 1 steps in each phase.",
            ),
            Trap(
                "the whole tensor in each step",
                ring.steps * size,
                "Each step moves one chunk, an nth of the tensor.",
            ),
            Trap("bits for bytes", sent * 8, "The question is in bytes; a byte has 8 bits."),
        ],
    )


@drill(
    "co-2",
    "Seconds of a ring all-reduce",
    difficulty=1,
    notebook=_NOTEBOOK,
    prompt="A ring all-reduce of {size} over {n} ranks. Each link carries {link} in one direction, "
    "and a message costs {alpha} besides its bytes. How long does it take by the alpha-beta model?",
    draws={
        "n": (4, 8, 16, 32, 64),
        "size": amounts("4 MB", "10 MB", "16 MB", "25 MB", "64 MB", "100 MB"),
        "link": LINKS,
        "alpha": LATENCIES,
    },
    unit="ms",
    between=("0.05 ms", "50 ms"),
)
def ring_seconds(n: int, size: float, link: float, alpha: float) -> Solution:
    """2(n-1) (alpha + D/n beta)."""
    seconds = calc.collective("all_reduce", "ring", n, size).seconds(alpha, 1 / link)
    steps = calc.collective("all_reduce", "ring", n).steps
    latency = calc.collective("all_reduce", "ring", n, 0).seconds(alpha, 1 / link)
    return Solution(
        seconds,
        [
            f"2(n - 1) = {steps} steps, each of a chunk of {calc.bytes_text(size / n)}.",
            f"Latency: {steps} x {calc.seconds_text(alpha)} = {calc.seconds_text(latency)}.",
            f"Bytes: {steps} x {calc.bytes_text(size / n)} / ({calc.bytes_text(link)}/s) = "
            f"{calc.seconds_text(seconds - latency)}.",
            f"Together {calc.seconds_text(seconds)}.",
        ],
        [
            Trap(
                "one phase instead of two",
                calc.collective("reduce_scatter", "ring", n, size).seconds(alpha, 1 / link),
                "That is the reduce-scatter; the all-gather takes as long again.",
            ),
            Trap(
                "latency left out",
                seconds - latency,
                "Each of the 2(n - 1) steps also pays the latency of a message.",
            ),
            Trap(
                "the whole tensor in each step",
                latency + (seconds - latency) * n,
                "A step sends one chunk, an nth of the tensor.",
            ),
            Trap(
                "both directions counted as speed",
                latency + (seconds - latency) / 2,
                "A rank sends to the right only, so one direction of the link counts.",
            ),
        ],
    )


@drill(
    "co-8",
    "One tensor or many",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="Gradients of {total} in all are all-reduced on a ring of {n} ranks, as {k} tensors of "
    "equal size, one after the other and not fused. A link carries {link} in one direction, a "
    "message costs {alpha} besides. How long do all of them take?",
    draws={
        "n": (8, 16, 32, 64),
        "total": amounts("200 MB", "500 MB", "1 GB", "2 GB"),
        "k": (50, 100, 200, 400),
        "link": LINKS[1:],
        "alpha": LATENCIES[2:],
    },
    unit="ms",
    digits=3,
    between=("1 ms", "2 s"),
)
def many_tensors(n: int, total: float, k: int, link: float, alpha: float) -> Solution:
    """k all-reduces of D/k each."""
    each = calc.collective("all_reduce", "ring", n, total / k).seconds(alpha, 1 / link)
    fused = calc.collective("all_reduce", "ring", n, total).seconds(alpha, 1 / link)
    steps = calc.collective("all_reduce", "ring", n).steps
    return Solution(
        k * each,
        [
            f"Fused into one tensor: {calc.seconds_text(fused)}, {steps} steps.",
            f"One of {k}: {calc.bytes_text(total / k)} in {steps} steps, "
            f"{calc.seconds_text(each)}.",
            f"The bytes are the same; the latencies come {k} times: "
            f"{calc.seconds_text(k * each)} in all.",
        ],
        [
            Trap(
                "as if they were one tensor",
                fused,
                "The bytes cost as much either way, but each tensor pays its own 2(n - 1) "
                "latencies.",
            ),
            Trap(
                "one latency for each tensor",
                fused - steps * alpha + k * alpha,
                "A ring all-reduce has 2(n - 1) steps, and each has a latency.",
            ),
            Trap(
                "latencies only",
                k * steps * alpha,
                "The bytes still have to travel: their term is that of one large tensor.",
            ),
            Trap("one phase instead of two", k * each / 2, "An all-reduce has two phases."),
        ],
    )


@cache
def _tree_below(n: int, alpha: float, beta: float, tree_rounds: int = 2) -> float:
    """Bytes below which a tree is faster; tree_rounds: 2 for a reduce and a broadcast."""
    found = predicted_crossing(
        lambda size: (
            tree_rounds * calc.collective("broadcast", "binomial", n, size).seconds(alpha, beta)
        ),
        lambda size: calc.collective("all_reduce", "ring", n, size).seconds(alpha, beta),
    )
    return 0.0 if found is None else found.nbytes


@drill(
    "co-4",
    "Where a tree and a ring change places",
    difficulty=3,
    notebook=_NOTEBOOK,
    prompt="All-reduce over {n} ranks, either on a ring or as a reduce and then a broadcast along "
    "a binomial tree, each log2(n) steps of the whole tensor, not cut into blocks. A message costs "
    "{alpha} and the link carries {link}. Below which size is the tree faster?",
    draws={"n": (8, 16, 32, 64, 128), "alpha": LATENCIES, "link": LINKS},
    unit="MB",
    between=("10 KB", "100 MB"),
)
def tree_ring_crossover(n: int, alpha: float, link: float) -> Solution:
    """Return the size D at which 2 log2(n) (alpha + D beta) equals 2(n-1) (alpha + D/n beta)."""
    crossing = _tree_below(n, alpha, 1 / link)
    steps, ring = 2 * (n.bit_length() - 1), calc.collective("all_reduce", "ring", n)
    saved, more = (ring.steps - steps) * alpha, steps - ring.sent_bytes
    pair = calc.crossover_bytes("ring", "double_tree", n, alpha, 1 / link)
    return Solution(
        crossing,
        [
            f"The tree takes {steps} steps of D, the ring {ring.steps} steps of D/{n}.",
            f"So the tree saves {ring.steps} - {steps} = {ring.steps - steps} latencies, "
            f"{calc.seconds_text(saved)},",
            f"and sends {more:.4g} D more one after the other.",
            f"They are equal at {calc.bytes_text(saved * link)} / "
            f"{more:.4g} = {calc.bytes_text(crossing)}. A pair of trees in blocks, as libraries "
            f"have it, is faster below {pair}.",
        ],
        [
            Trap(
                "a tree with one way only",
                _tree_below(n, alpha, 1 / link, tree_rounds=1),
                "The tree goes up to reduce and down again to broadcast.",
            ),
            Trap(
                "latency times bandwidth",
                alpha * link,
                "That is where one message costs as much for its latency as for its bytes; here "
                "two algorithms are compared, with many messages each.",
            ),
            Trap(
                "bits for bytes",
                crossing * 8,
                "The bandwidth is in bytes per second, and so is the answer in bytes.",
            ),
            Trap(
                "as if the ring sent no bytes",
                saved * link / steps,
                "The ring sends 2(n - 1)/n D one after the other: only the difference counts.",
            ),
        ],
    )


@drill(
    "co-5",
    "Seconds of a hierarchical all-reduce",
    difficulty=3,
    notebook=_HOSTS,
    prompt="{hosts} hosts of {per_host} GPUs all-reduce {size} hierarchically: reduce-scatter in "
    "the host, ring all-reduce between hosts, all-gather in the host. Each GPU has {fast} to its "
    "neighbours in the host and an adapter of its own with {link} to other hosts, one direction. "
    "Latencies are free. How long does it take?",
    draws={**_TWO_TIERS, "size": amounts("400 MB", "1 GB", "2 GB", "4 GB", "10 GB")},
    unit="ms",
    between=("0.5 ms", "2 s"),
)
def hierarchical_seconds(
    hosts: int, per_host: int, size: float, fast: float, link: float
) -> Solution:
    """All-reduce within a host, and of an Lth of the tensor between hosts."""
    n, alphas, betas = hosts * per_host, (0.0, 0.0), (1 / fast, 1 / link)
    tiered = calc.collective("all_reduce", "hierarchical", n, size, ranks_per_host=per_host)
    seconds = tiered.seconds(alphas, betas)
    flat, rings = (
        calc.collective(
            "all_reduce", "ring", n, size, ranks_per_host=per_host, rings=adapters
        ).seconds(alphas, betas)
        for adapters in (1, per_host)
    )
    within = calc.collective("all_reduce", "ring", per_host, size).seconds(0, 1 / fast)
    return Solution(
        seconds,
        [
            f"In the host: 2 x {per_host - 1}/{per_host} x {calc.bytes_text(size)} at "
            f"{calc.bytes_text(fast)}/s = {calc.seconds_text(within)}.",
            f"After the reduce-scatter a GPU holds {calc.bytes_text(size / per_host)}; between "
            f"hosts 2 x {hosts - 1}/{hosts} of that at {calc.bytes_text(link)}/s = "
            f"{calc.seconds_text(seconds - within)}.",
            f"Together {calc.seconds_text(seconds)}. One flat ring leaves a host by one adapter: "
            f"{calc.seconds_text(flat)}. {per_host} flat rings over all adapters, as NCCL has "
            f"them: {calc.seconds_text(rings)}.",
        ],
        [
            Trap(
                "one flat ring",
                flat,
                "One flat ring leaves a host by one adapter, with nearly twice the tensor; here "
                "each GPU takes only its part across, over its own adapter.",
            ),
            Trap(
                "one adapter for the whole host",
                tiered.seconds(alphas, betas, shared=True),
                "Each GPU has an adapter of its own, so the parts cross side by side.",
            ),
            Trap(
                "between hosts only",
                seconds - within,
                "The reduce-scatter and the all-gather in the host take time too.",
            ),
            Trap(
                "within the host only",
                within,
                "The hosts still have to add up what each of them has.",
            ),
            Trap("one phase instead of two", seconds / 2, "Both tiers reduce and then gather."),
        ],
    )


@drill(
    "co-5",
    "Traffic between hosts",
    difficulty=2,
    notebook=_HOSTS,
    prompt="{hosts} hosts of {per_host} GPUs all-reduce {numel} bf16 gradients hierarchically: "
    "reduce-scatter in the host, ring all-reduce between hosts, all-gather in the host. How many "
    "bytes does one GPU send to another host?",
    draws={
        "hosts": (2, 4, 8, 16, 32),
        "per_host": (4, 8),
        "numel": tuple(
            millions * 2**20 for millions in (48, 64, 96, 128, 192, 256, 384, 512, 1024)
        ),
    },
    unit="MB",
    between=("1 MB", "2 GB"),
)
def hierarchical_slow_bytes(hosts: int, per_host: int, numel: int) -> Solution:
    """2(H-1)/H D/L."""
    n, size = hosts * per_host, 2 * numel
    sent = calc.collective(
        "all_reduce", "hierarchical", n, size, itemsize=2, rank=0, ranks_per_host=per_host
    ).tier_bytes
    return Solution(
        sent.slow,
        [
            f"The gradients are {calc.bytes_text(size)}; after the reduce-scatter a GPU answers "
            f"for {calc.bytes_text(size / per_host)}.",
            f"A ring over {hosts} hosts sends 2 x {hosts - 1}/{hosts} of that: "
            f"{calc.bytes_text(sent.slow)}.",
            f"Inside the host it sends {calc.bytes_text(sent.fast)}.",
        ],
        [
            Trap(
                "the whole tensor across",
                sent.slow * per_host,
                "After the reduce-scatter in the host each GPU holds an Lth of it.",
            ),
            Trap(
                "the bytes inside the host",
                sent.fast,
                "The two phases in the host stay on the fast links.",
            ),
            Trap("one phase instead of two", sent.slow / 2, "Between hosts it is an all-reduce."),
            Trap(
                "one flat ring",
                calc.collective("all_reduce", "ring", n, size).sent_bytes,
                "In one flat ring the last GPU of a host sends all of its bytes to the next host.",
            ),
            Trap("float32 gradients", sent.slow * 2, "A bf16 number has 2 bytes."),
        ],
    )
