"""Mutant: stores half a matrix.

outcome: "wrong"
diagnosis: "keeps half of the scores, for a causal mask"
"""


def activation_bytes(
    s: int,
    b: int,
    h: int,
    a: int,
    t: int,
    sequence_parallel: bool,
    recompute: str,
    flash: bool,
) -> float:
    whole = t if sequence_parallel else 1
    if recompute == "full":
        return 2 * s * b * h / whole
    outside = 2 * (2 + 2 + 1) * s * b * h
    inside = (3 * 2 + 2) * s * b * h + (2 + 2) * s * b * 4 * h
    scores = (2 + 1 + 2) * a * s * s * b / 2
    if flash:
        scores = 4 * a * s * b
    elif recompute == "selective":
        scores = 0
    return outside / whole + (inside + scores) / t
