"""Mutant: the forward is repeated from nothing.

outcome: "wrong"
diagnosis: "keeps nothing with full recomputation"
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
        return 0
    outside = 2 * (2 + 2 + 1) * s * b * h
    inside = (3 * 2 + 2) * s * b * h + (2 + 2) * s * b * 4 * h
    scores = (2 + 1 + 2) * a * s * s * b
    if flash:
        scores = 4 * a * s * b
    elif recompute == "selective":
        scores = 0
    return outside / whole + (inside + scores) / t
