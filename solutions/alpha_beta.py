"""Alpha and beta of a link, from measured all-reduces; and what the next one will take.

An interviewer asks: "These are the times of all_reduce_perf on four GPUs, from 1 KiB to 4 GiB. What
are the latency and the bandwidth of a link? What would 64 GPUs take for a gradient of 1 GB, and for
8 KiB, and would you still run a ring?"

The alpha-beta model: a message of m bytes takes alpha + m * beta seconds. alpha is the latency in
seconds, beta the time of a byte in seconds, 1 / (bytes per second). All-reduces of a tensor of D
bytes on each of n ranks, where every rank can send one message and receive one at a time:

    "ring"  cuts the tensor into n equal segments. A reduce-scatter, then an all-gather: in each
            step every rank sends one segment to its neighbour
    "tree"  a reduction up a binomial tree to one rank, adding, then a broadcast down the same tree.
            The whole tensor in each step, level by level: who has received all of it passes it on

Write three functions.

    fit(points)                                  (alpha, beta) of the link
        points  a list of (algorithm, n, nbytes, seconds), in any order: that all-reduce of nbytes
                (D) on n ranks of the link took so long. All have been measured on one link; they
                may differ in algorithm and n. Times span several powers of ten, and each may be
                off by a few percent of itself
    predict(alpha, beta, n, nbytes, algorithm)   seconds of an all-reduce
    choose(alpha, beta, n, nbytes)               "ring" or "tree": which is faster

Contract
    all         numbers are Python's own: float(x) makes one of torch's or numpy's plain
    predict     exactly what the model says
    fit         exact times: alpha and beta to three digits. Times that are off by up to 4%: within
                12% of the true time at every size from the smallest point to the largest
    at last     a link is measured for you, by all-reduces of real ranks whose messages are paced to
                an alpha and a beta that are drawn for each check. Some of the times go to `fit`;
                its link must then predict those that were held back: other sizes, and the tree
    never       labkit.calc and labkit.measure. Work it out; it is a few lines each
"""


def fit(points: list[tuple[str, int, int, float]]) -> tuple[float, float]:
    """alpha (seconds per message) and beta (seconds per byte) that explain the points best."""
    ### BEGIN SOLUTION
    # Each point is an equation, latencies * alpha + nbytes * beta = seconds. Divided by its own
    # seconds it says x alpha + y beta = 1, and what is left over is the error in parts of the time:
    # so a point of 100 us counts as much as one of a second.
    xx = xy = yy = x1 = y1 = 0.0
    for algorithm, n, nbytes, seconds in points:
        x = predict(1.0, 0.0, n, nbytes, algorithm) / seconds
        y = predict(0.0, 1.0, n, nbytes, algorithm) / seconds
        xx, xy, yy, x1, y1 = xx + x * x, xy + x * y, yy + y * y, x1 + x, y1 + y
    determinant = xx * yy - xy * xy
    return (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant
    ### END SOLUTION


def predict(alpha: float, beta: float, n: int, nbytes: float, algorithm: str) -> float:
    """Seconds of one all-reduce of `nbytes` on `n` ranks, by "ring" or by "tree"."""
    ### BEGIN SOLUTION
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    levels = (n - 1).bit_length()  # ceil(log2 n)
    return 2 * levels * (alpha + nbytes * beta)
    ### END SOLUTION


def choose(alpha: float, beta: float, n: int, nbytes: float) -> str:
    """The algorithm that takes less time: "ring" or "tree"."""
    ### BEGIN SOLUTION
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
    ### END SOLUTION
