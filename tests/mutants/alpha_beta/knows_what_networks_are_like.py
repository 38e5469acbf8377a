"""Mutant: does not believe in a latency above 100 microseconds.

outcome: "wrong"
diagnosis: "does not predict what was held back"
"""


def link(points):
    xx = xy = yy = x1 = y1 = 0.0
    for algorithm, n, nbytes, seconds in points:
        x = predict(1.0, 0.0, n, nbytes, algorithm) / seconds
        y = predict(0.0, 1.0, n, nbytes, algorithm) / seconds
        xx, xy, yy, x1, y1 = xx + x * x, xy + x * y, yy + y * y, x1 + x, y1 + y
    determinant = xx * yy - xy * xy
    return (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant


def fit(points):
    alpha, beta = link(points)
    return min(alpha, 1e-4), beta


def predict(alpha, beta, n, nbytes, algorithm):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    return 2 * (n - 1).bit_length() * (alpha + nbytes * beta)


def choose(alpha, beta, n, nbytes):
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
