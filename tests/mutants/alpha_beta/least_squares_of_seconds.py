"""Mutant: ordinary least squares: errors in seconds.

outcome: "wrong"
diagnosis: "lets the largest size decide"
"""


def fit(points):
    rows = []
    for algorithm, n, nbytes, seconds in points:
        x, y = (predict(*link, n, nbytes, algorithm) for link in ((1, 0), (0, 1)))
        rows.append((x, y, seconds))
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    xt, yt = (sum(r[i] * r[2] for r in rows) for i in (0, 1))
    determinant = xx * yy - xy * xy
    return (xt * yy - yt * xy) / determinant, (yt * xx - xt * xy) / determinant


def predict(alpha, beta, n, nbytes, algorithm):
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + nbytes / n * beta)
    return 2 * (n - 1).bit_length() * (alpha + nbytes * beta)


def choose(alpha, beta, n, nbytes):
    ring, tree = (predict(alpha, beta, n, nbytes, each) for each in ("ring", "tree"))
    return "ring" if ring <= tree else "tree"
