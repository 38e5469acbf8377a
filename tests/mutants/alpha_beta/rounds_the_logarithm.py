"""Mutant: round(log2 n) steps, which are enough for 6 ranks and too few for 5 and 9.

outcome: "wrong"
diagnosis: "rounds log2 n to the nearest"
"""

import math


def fit(points):
    xx = xy = yy = x1 = y1 = 0.0
    for algorithm, n, nbytes, seconds in points:
        x = predict(1.0, 0.0, n, nbytes, algorithm) / seconds
        y = predict(0.0, 1.0, n, nbytes, algorithm) / seconds
        xx, xy, yy, x1, y1 = xx + x * x, xy + x * y, yy + y * y, x1 + x, y1 + y
    determinant = xx * yy - xy * xy
    return (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant


def predict(alpha, beta, n, nbytes, algorithm):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    return 2 * round(math.log2(n)) * (alpha + nbytes * beta)


def choose(alpha, beta, n, nbytes):
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
