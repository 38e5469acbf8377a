"""Alpha and beta of a link, from measured all-reduces; and what the next one will take.

An interviewer asks: "These are the times of all_reduce_perf on four GPUs, from 1 KiB to 4 GiB. What
are the latency and the bandwidth of a link? What would 64 GPUs take for a gradient of 1 GB, and for
8 KiB, and would you still run a ring?"

The alpha-beta model: a message of m bytes takes alpha + m * beta seconds. alpha is the latency in
seconds. beta is the time of one byte in seconds, 1 / (bytes per second). The all-reduces are of a
tensor of D bytes on each of n ranks. Each rank can send one message and receive one at a time:

    "ring"  cuts the tensor into n chunks of D / n bytes, not rounded. A reduce-scatter, then an
            all-gather: in each step every rank sends one chunk to its neighbour
    "tree"  a reduction up a binomial tree to one rank, then a broadcast down the same tree. Each
            message is the whole tensor. A rank sends it on when it has received all of it

Write three functions.

    fit(points)                                  (alpha, beta) of the link
        points  a list of (algorithm, n, nbytes, seconds), in any order: an all-reduce of D = nbytes
                on n ranks took so many seconds. All points are from one link. They may differ in
                algorithm and n. Their times span several powers of ten
    predict(alpha, beta, n, nbytes, algorithm)   seconds of an all-reduce
    choose(alpha, beta, n, nbytes)               "ring" or "tree": the faster one

Contract
    numbers     Python's own: float(x) makes one of a number of torch or numpy
    predict     what the model says, within 0.0001%
    choose      is only asked where one takes 30% longer than the other, or more
    fit         where the times are exact: alpha and beta, each within 0.1%
                where each time has an error of up to 4% of itself: at every size from the smallest
                point to the largest, the time that the model gives for your alpha and beta is
                within 12% of the time that it gives for the link's own
                alpha is between 1 microsecond and 10 ms, beta between 10 ps and 1 microsecond
    never       labkit.calc and labkit.measure. Work it out: it is a few lines each
"""


def fit(points: list[tuple[str, int, int, float]]) -> tuple[float, float]:
    """Return alpha (seconds per message) and beta (seconds per byte), fitted to the points."""
    ### BEGIN SOLUTION
    # Each point is an equation, latencies * alpha + bytes * beta = seconds. Divided by its seconds
    # it is x alpha + y beta = 1, and its error is relative to the time. So a point of 100 us counts
    # as much as one of a second.
    xx = xy = yy = x1 = y1 = 0.0
    for algorithm, n, nbytes, seconds in points:
        x = predict(1.0, 0.0, n, nbytes, algorithm) / seconds
        y = predict(0.0, 1.0, n, nbytes, algorithm) / seconds
        xx, xy, yy, x1, y1 = xx + x * x, xy + x * y, yy + y * y, x1 + x, y1 + y
    determinant = xx * yy - xy * xy
    return (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant
    ### END SOLUTION


def predict(alpha: float, beta: float, n: int, nbytes: float, algorithm: str) -> float:
    """Return the seconds of one all-reduce of `nbytes` on `n` ranks, by "ring" or by "tree"."""
    ### BEGIN SOLUTION
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    levels = (n - 1).bit_length()  # ceil(log2 n)
    return 2 * levels * (alpha + nbytes * beta)
    ### END SOLUTION


def choose(alpha: float, beta: float, n: int, nbytes: float) -> str:
    """Return the algorithm that takes less time: "ring" or "tree"."""
    ### BEGIN SOLUTION
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
    ### END SOLUTION
