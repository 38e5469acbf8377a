"""Mutant: lets labkit do it.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

from labkit import calc


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
    config = calc.ModelConfig(layers=1, hidden=h, heads=a, vocab=1, context=s)
    calc.activation_bytes(config, b, t, sequence_parallel, recompute=recompute, flash=flash)
    whole = t if sequence_parallel else 1
    if recompute == "full":
        return 2 * s * b * h / whole
    outside = 2 * (2 + 2 + 1) * s * b * h
    inside = (3 * 2 + 2) * s * b * h + (2 + 2) * s * b * 4 * h
    scores = (2 + 1 + 2) * a * s * s * b
    if flash:
        scores = 4 * a * s * b
    elif recompute == "selective":
        scores = 0
    return outside / whole + (inside + scores) / t
