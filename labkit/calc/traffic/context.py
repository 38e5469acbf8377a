"""Traffic and work of attention over a sequence that is sharded over n ranks.

One layer, B sequences of T tokens, of which a rank holds t; H heads of queries and G of keys, of K
features; b bytes a number on the wire, b' a gradient of keys and values that travels a ring:

    per rank     sent forward                      sent backward
    ring         2 B G K b (T - t_right)           the same + 2 B G K b' (T - t)
    gathered     2 B G K b (n - 1) t               2 B G K b (T - t)
    ulysses      B K b ((n - 1) t (H + 2G)         B K b ((n - 1) t H
                        + (T - t) H) / n                  + (T - t) (H + 2G)) / n

t_right is the shard of the right neighbour, who has it already. With equal shards, and a rank's own
keys and values (2 B G K b t) as the unit, a forward pass sends n - 1 by ring and gathered, and
(n-1)/n (1 + H/G) by Ulysses, which hardly grows with n. `context_score_elements` counts the scores
that a causal mask leaves.

Papers: Liu et al., arXiv:2310.01889 (ring); Jacobs et al., arXiv:2309.14509, section 3.2 (Ulysses).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit import arguments
from labkit.calc.result import Result, total, total_bytes
from labkit.calc.traffic.cost import chunk_numels

_STRATEGIES = ("ring", "gathered", "ulysses")
_PLACEMENTS = ("contiguous", "zigzag")
_Parts = Mapping[str, tuple[int, int, int]]
"""name -> (tokens, numbers in each, bytes of a number)"""


def context_shard_tokens(num_tokens: float, world_size: int, placement: str) -> list[int]:
    """Return the tokens of each rank: n segments, or 2n with zigzag, by torch.tensor_split's rule.

    context_shard_tokens(10, 4, "zigzag") == [3, 3, 2, 2]: 2 + 1, 2 + 1, 1 + 1, 1 + 1
    """
    return [sum(own for _, own in held) for held in _held(num_tokens, world_size, placement)]


def context_traffic_bytes(
    strategy: str,
    num_tokens: float,
    world_size: int,
    rank: int,
    *,
    num_heads: int,
    head_dim: int,
    num_kv_heads: int | None = None,
    batch: int = 1,
    itemsize: int = 2,
    gradient_itemsize: int | None = None,
    placement: str = "contiguous",
) -> Result:
    """Return the exact bytes that `rank` sends for one layer, forward and backward.

    strategy: "ring", "gathered" or "ulysses". num_kv_heads: G; None: as many as num_heads.
    gradient_itemsize: bytes of a number in gradients of keys and values on a ring; None: itemsize,
    but at least 4. ValueError if world_size does not divide the heads of Ulysses.
    """
    if not isinstance(strategy, str) or strategy not in _STRATEGIES:
        raise ValueError(f"strategy={strategy!r:.60}: give one of {', '.join(_STRATEGIES)}")
    n, rank = arguments.counted("world_size", world_size), arguments.rank("rank", rank, world_size)
    tokens = context_shard_tokens(num_tokens, n, placement)
    H = arguments.counted("num_heads", num_heads)
    G = H if num_kv_heads is None else arguments.counted("num_kv_heads", num_kv_heads)
    _check_heads(strategy, H, G, n)
    b = arguments.counted("itemsize", itemsize)
    of_gradient = max(4, b)
    if gradient_itemsize is not None:
        of_gradient = arguments.counted("gradient_itemsize", gradient_itemsize)
    features = arguments.counted("batch", batch) * arguments.counted("head_dim", head_dim)
    if strategy == "ulysses":
        parts = _ulysses_parts(tokens, rank, features, H, G, b)
    else:
        of_strategy = _ring_parts if strategy == "ring" else _gathered_parts
        parts = of_strategy(tokens, rank, 2 * G * features, b, of_gradient)
    return _sum_of_parts(f"sent by rank {rank} of {strategy} attention", parts)


def ring_attention_messages(world_size: int) -> Result:
    """Return the messages that one rank sends to its right neighbour for one layer."""
    steps = arguments.counted("world_size", world_size) - 1
    passes = ("forward, keys and values", "backward, keys and values", "backward, their gradients")
    return total("messages of ring attention", {name: Result(steps, "", name) for name in passes})


def context_score_elements(
    num_tokens: float,
    world_size: int,
    rank: int,
    *,
    placement: str = "contiguous",
    tile: int | None = None,
) -> Result:
    """Return the scores of a head and a sequence that `rank` computes under a causal mask.

    A token at position p attends to p + 1 keys. tile: tokens of a tile; tiles on the diagonal are
    computed whole. None: only unmasked scores. If n divides T, of T^2/2 in all contiguous gives
    rank r (2r + 1)/n^2, so the last rank computes 2n - 1 times as much as the first; zigzag gives
    each rank 1/n.
    """
    rank = arguments.rank("rank", rank, world_size)
    if tile is not None:
        tile = arguments.counted("tile", tile)
    parts = {}
    for before, own in _held(num_tokens, world_size, placement)[rank]:
        of_tile = min(tile or 1, own) or 1
        whole, rest = divmod(own, of_tile)
        diagonal = (own**2 + whole * of_tile**2 + rest**2) // 2
        name = f"tokens from {before}"
        parts[name] = Result(
            own * before + diagonal,
            "",
            name,
            substitution=f"{own} * {before} before them + {diagonal} among themselves",
        )
    return total(
        f"scores of rank {rank}, {placement}",
        parts,
        formula="by segment: t * (tokens before it) + (t^2 + sum of tile^2)/2",
        convention="one head of one sequence; each score once forward",
    )


def _held(num_tokens: float, world_size: int, placement: str) -> list[list[tuple[int, int]]]:
    """By rank, (tokens before it, its tokens) of each segment."""
    n = arguments.counted("world_size", world_size)
    num_tokens = arguments.counted("num_tokens", num_tokens, "0 or more", least=0)
    if not isinstance(placement, str) or placement not in _PLACEMENTS:
        raise ValueError(f"placement={placement!r:.60}: give one of {', '.join(_PLACEMENTS)}")
    num_segments = n if placement == "contiguous" else 2 * n
    sizes = chunk_numels(num_tokens, num_segments)
    segments = [(sum(sizes[:number]), size) for number, size in enumerate(sizes)]
    if placement == "contiguous":
        return [[segment] for segment in segments]
    return [[segments[rank], segments[2 * n - 1 - rank]] for rank in range(n)]


def _check_heads(strategy: str, H: int, G: int, n: int) -> None:
    if H % G:
        raise ValueError(
            f"num_kv_heads={G} do not divide num_heads={H} into groups; give "
            f"{arguments.divisors_text(H)}"
        )
    if strategy == "ulysses" and G % n:
        raise ValueError(
            f"world_size={n} does not divide num_kv_heads={G}, and Ulysses deals out whole heads; "
            f"give {arguments.divisors_text(G)} ranks"
        )


def _ring_parts(tokens: Sequence[int], rank: int, kv: int, b: int, of_gradient: int) -> _Parts:
    """Return the parts of a ring. kv: numbers in the keys and values of one token."""
    own, right, T = tokens[rank], tokens[(rank + 1) % len(tokens)], sum(tokens)
    return {
        "forward, keys and values": (T - right, kv, b),
        "backward, keys and values": (T - right, kv, b),
        "backward, their gradients": (T - own, kv, of_gradient),
    }


def _gathered_parts(tokens: Sequence[int], rank: int, kv: int, b: int, _: int) -> _Parts:
    """Return the parts of gathering. kv: numbers in a token's keys and values; gradients have b
    bytes."""
    own = tokens[rank]
    return {
        "forward, keys and values": ((len(tokens) - 1) * own, kv, b),
        "backward, their gradients": (sum(tokens) - own, kv, b),
    }


def _ulysses_parts(
    tokens: Sequence[int], rank: int, features: int, H: int, G: int, b: int
) -> _Parts:
    """Return the parts of Ulysses. features: of one head, times the sequences."""
    n, own = len(tokens), tokens[rank]
    others = sum(tokens) - own
    q_of_rank, all_of_rank = H // n * features, (H + 2 * G) // n * features
    return {
        "forward, q, k and v": ((n - 1) * own, all_of_rank, b),
        "forward, out": (others, q_of_rank, b),
        "backward, gradient of out": ((n - 1) * own, q_of_rank, b),
        "backward, gradients of q, k and v": (others, all_of_rank, b),
    }


def _sum_of_parts(name: str, parts: _Parts) -> Result:
    made = {
        part: (tokens * numbers * size, f"{tokens} tokens * {numbers} numbers * {size} B")
        for part, (tokens, numbers, size) in parts.items()
    }
    return total_bytes(name, made, convention="one layer; bytes of tensors, without headers")
