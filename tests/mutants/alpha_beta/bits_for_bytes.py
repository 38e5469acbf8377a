"""Mutant: multiplies by 8, as for a speed in bits.

outcome: "wrong"
diagnosis: "bits for bytes"
"""


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
        return 2 * (n - 1) * (alpha + 8 * nbytes / n * beta)
    return 2 * (n - 1).bit_length() * (alpha + 8 * nbytes * beta)


def choose(alpha, beta, n, nbytes):
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
