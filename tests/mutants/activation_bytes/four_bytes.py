"""Mutant: float32 throughout.

outcome: "wrong"
diagnosis: "counts four bytes for each number"
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
        return 4 * s * b * h / whole
    outside = 2 * (4 + 4 + 1) * s * b * h
    inside = (3 * 4 + 4) * s * b * h + (4 + 4) * s * b * 4 * h
    scores = (4 + 1 + 4) * a * s * s * b
    if flash:
        scores = 4 * a * s * b
    elif recompute == "selective":
        scores = 0
    return outside / whole + (inside + scores) / t
