"""Mutant: bytes over bandwidth, and nothing else.

outcome: "wrong"
diagnosis: "leaves the latency out"
"""


def fit(points):
    slopes = [seconds / predict(0, 1, n, nbytes, a) for a, n, nbytes, seconds in points]
    return 0.0, min(slopes)


def predict(alpha, beta, n, nbytes, algorithm):
    if algorithm == "ring":
        return 2 * (n - 1) / n * nbytes * beta
    return 2 * (n - 1).bit_length() * nbytes * beta


def choose(alpha, beta, n, nbytes):
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
