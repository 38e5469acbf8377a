"""Mutant: asks labkit.calc.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

from labkit import calc


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
        return calc.all_reduce_seconds(nbytes, n, alpha, beta)
    return 2 * calc.broadcast_seconds(nbytes, n, alpha, beta)


def choose(alpha, beta, n, nbytes):
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
