"""Mutant: round(log2 n) steps in fit, which are too few for 5 and 9 ranks; predict rounds up.

outcome: "wrong"
diagnosis: "rounds log2 n down"
"""

import math


def fit(points):
    xx = xy = yy = x1 = y1 = 0.0
    for algorithm, n, nbytes, seconds in points:
        steps = 2 * (n - 1) if algorithm == "ring" else 2 * round(math.log2(n))
        x = steps / seconds
        y = steps * nbytes / (n if algorithm == "ring" else 1) / seconds
        xx, xy, yy, x1, y1 = xx + x * x, xy + x * y, yy + y * y, x1 + x, y1 + y
    determinant = xx * yy - xy * xy
    return (x1 * yy - y1 * xy) / determinant, (y1 * xx - x1 * xy) / determinant


def predict(alpha, beta, n, nbytes, algorithm):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    return 2 * (n - 1).bit_length() * (alpha + nbytes * beta)


def choose(alpha, beta, n, nbytes):
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
