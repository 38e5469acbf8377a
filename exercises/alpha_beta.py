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
    raise NotImplementedError("not attempted yet: your code replaces this line")


def predict(alpha: float, beta: float, n: int, nbytes: float, algorithm: str) -> float:
    """Seconds of one all-reduce of `nbytes` on `n` ranks, by "ring" or by "tree"."""
    raise NotImplementedError("not attempted yet: your code replaces this line")


def choose(alpha: float, beta: float, n: int, nbytes: float) -> str:
    """The algorithm that takes less time: "ring" or "tree"."""
    raise NotImplementedError("not attempted yet: your code replaces this line")
