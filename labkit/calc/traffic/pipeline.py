"""What a pipeline sends in a step: outputs forward, their gradients back, over each boundary.

    stage s --- B*T*D numbers ---> stage s + 1        over all microbatches, whatever their number
    stage s <-- B*T*D numbers ---- stage s + 1

Cut finer, the same bytes go in more messages. With v virtual stages per rank, dealt round, there
are v p - 1 boundaries instead of p - 1, and a tied embedding goes once each way between the
first rank and the last. Placed as a V, rank r has the stages r and 2p - 1 - r: 2p - 2 boundaries,
for the two in the middle are on one rank, and so are both ends of a tied embedding.

Paper: Narayanan et al., arXiv:2104.04473, sections 2.2 and 3.
"""

from __future__ import annotations

from labkit.calc.checked_numbers import check_itemsize, check_rank, check_ranks, is_whole, shown
from labkit.calc.result import Result, total_bytes

_SOURCE = "Narayanan et al., arXiv:2104.04473, sections 2.2 and 3"


def pipeline_traffic_bytes(
    tokens: float,
    hidden: float,
    stages: int,
    rank: int,
    itemsize: int = 2,
    *,
    virtual: int = 1,
    placement: str = "round",
    tied_vocab: float = 0,
) -> Result:
    """Bytes that a rank of the pipeline puts on the wire in a step, with their parts.

    tokens: of the whole batch, B * T. stages: ranks, p. virtual: stages per rank. placement:
    "round", as interleaved deals them, or "v", two per rank. tied_vocab: the rows of an embedding
    that the first and the last stage share; 0: none.
    pipeline_traffic_bytes(1024, 512, 4, rank=1) == 2 * 1024 * 512 * 2
    ValueError or TypeError for counts that are none.
    """
    p, v = check_ranks(stages, "stages"), check_ranks(virtual, "virtual")
    rank, size = check_rank(rank, p), check_itemsize(itemsize)
    for name, count in (("tokens", tokens), ("hidden", hidden), ("tied_vocab", tied_vocab)):
        _check_count(count, name, least=0 if name == "tied_vocab" else 1)
    _check_placement(placement, v)
    if p == 1:  # its stages hand on within the rank
        outputs = gradients = 0
    elif placement == "v":  # one way down the ranks and one way up, but for both ends
        outputs = gradients = 2 - (rank in (0, p - 1))
    else:
        outputs, gradients = v - (rank == p - 1), v - (rank == 0)
    has_one_end = placement == "round" and p > 1 and rank in (0, p - 1)
    tied = tied_vocab if has_one_end else 0
    row = hidden * size
    parts = {
        "outputs": (float(outputs * tokens * row), f"{outputs} tokens hidden itemsize"),
        "gradients": (float(gradients * tokens * row), f"{gradients} tokens hidden itemsize"),
        "tied embedding": (float(tied * row), "vocab hidden itemsize"),
    }
    return total_bytes(
        f"pipeline traffic of rank {rank} in a step",
        parts,
        convention="sent bytes; forward, backward and the tied weight",
        source=_SOURCE,
    )


def _check_placement(placement: object, virtual: int) -> None:
    if placement not in ("round", "v"):
        raise ValueError(f"placement={shown(placement)}: give 'round' or 'v'")
    if placement == "v" and virtual != 2:
        raise ValueError(f"virtual={virtual}: a V has two stages on each rank; give virtual=2")


def _check_count(count: float, name: str, least: int) -> None:
    if isinstance(count, bool) or not isinstance(count, (int, float)):
        raise TypeError(f"{name}={shown(count)}: give a number, such as 1024")
    if not is_whole(count) or count < least:
        raise ValueError(f"{name}={shown(count)}: give a whole number, {least} or more")
