"""Drills on context parallelism: what ring attention and Ulysses send, and the causal mask."""

from labkit import calc
from labkit.interview.drills.drill import drill
from labkit.interview.drills.question import Solution, Trap

_NOTEBOOK = "15_long_sequences"
_DRAWS = {
    "heads kv_heads": ((32, 8), (64, 8), (128, 8), (64, 16)),
    "features": (64, 128),
    "tokens": (32768, 65536, 131072, 262144),
}
_LAYER = "{heads} query heads and {kv_heads} key-value heads of {features} features, "


@drill(
    "cp-1",
    "Bytes of ring attention",
    difficulty=2,
    notebook=_NOTEBOOK,
    prompt="A sequence of {tokens} tokens is cut evenly over {n} ranks. " + _LAYER + "bf16. In one "
    "layer's forward pass ring attention passes keys and values around. How many bytes does a rank "
    "send?",
    draws={**_DRAWS, "n": (4, 8, 16)},
    unit="MB",
    digits=3,
    between=("5 MB", "10 GB"),
)
def ring_attention_bytes(tokens: int, n: int, heads: int, kv_heads: int, features: int) -> Solution:
    """n - 1 times a rank's own keys and values."""
    sent = _forward("ring", tokens, n, heads, kv_heads, features)
    return Solution(
        sent,
        [
            f"A rank holds {tokens // n:,} tokens: keys and values of 2 x {kv_heads} x {features} "
            f"numbers of 2 B each, {calc.bytes_text(sent / (n - 1))}.",
            f"It sends such a block in each of {n - 1} steps.",
            f"Together {calc.bytes_text(sent)}.",
        ],
        [
            Trap("keys only", sent / 2, "Values travel with their keys."),
            Trap(
                "as many key-value heads as query heads",
                _forward("ring", tokens, n, heads, heads, features),
                "Queries stay where they are; only the few key-value heads travel.",
            ),
            Trap(
                "n steps instead of n - 1",
                sent * n / (n - 1),
                "A rank's own block need not travel to it.",
            ),
            Trap("one step", sent / (n - 1), "Every rank's block must come to every other."),
        ],
    )


def _forward(strategy: str, tokens: int, n: int, heads: int, kv_heads: int, features: int) -> float:
    sent = calc.context_traffic_bytes(
        strategy, tokens, n, 0, num_heads=heads, num_kv_heads=kv_heads, head_dim=features
    )
    return sum(float(part) for name, part in sent.parts.items() if name.startswith("forward"))


@drill(
    "cp-1",
    "Bytes of Ulysses",
    difficulty=3,
    notebook=_NOTEBOOK,
    prompt="A sequence of {tokens} tokens is cut evenly over {n} ranks. " + _LAYER + "bf16. In one "
    "layer's forward pass Ulysses goes from tokens to heads and back by all-to-all. How many bytes "
    "does a rank send?",
    draws={**_DRAWS, "n": (2, 4, 8)},
    unit="MB",
    digits=3,
    between=("5 MB", "10 GB"),
)
def ulysses_bytes(tokens: int, n: int, heads: int, kv_heads: int, features: int) -> Solution:
    """(n-1)/n of queries, keys and values, and of the output."""
    sizes = (tokens, n, heads, kv_heads, features)
    sent = _forward("ulysses", *sizes)
    parts = calc.context_traffic_bytes(
        "ulysses", tokens, n, 0, num_heads=heads, num_kv_heads=kv_heads, head_dim=features
    ).parts
    there, back = float(parts["forward, q, k and v"]), float(parts["forward, out"])
    return Solution(
        sent,
        [
            f"A rank has {tokens // n:,} tokens and keeps an nth of its heads: it sends "
            f"{n - 1}/{n} of what it has.",
            f"Queries, keys and values, {heads} + 2 x {kv_heads} heads of {features}: "
            f"{calc.bytes_text(there)}.",
            f"The output of {heads} heads back: {calc.bytes_text(back)}.",
            f"Together {calc.bytes_text(sent)}.",
        ],
        [
            Trap(
                "the way back left out",
                there,
                "Attention's output has to go back to where its tokens are.",
            ),
            Trap(
                "as ring attention",
                _forward("ring", *sizes),
                "On a ring the keys and values travel n - 1 times; here everything travels once.",
            ),
            Trap(
                "as many key-value heads as query heads",
                _forward("ulysses", tokens, n, heads, heads, features),
                "Grouped-query attention has fewer keys and values to send.",
            ),
            Trap(
                "its own part counted too",
                sent * n / (n - 1),
                "An nth of the heads stays where it is.",
            ),
        ],
    )


@drill(
    "cp-1",
    "The busiest rank under a causal mask",
    difficulty=3,
    notebook=_NOTEBOOK,
    prompt="A sequence of {tokens} tokens is cut over {n} ranks in order, rank 0 has its "
    "beginning. Under a causal mask, which share of all attention scores does the last rank "
    "compute?",
    draws={
        # Every n divides them: 16,384 over 24 ranks are off (2n - 1)/n^2 in the third digit.
        "tokens": (15360, 30720, 61440, 122880, 245760),
        "n": (3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32),
    },
    unit="%",
    digits=3,
    between=("1%", "90%"),
)
def causal_imbalance(tokens: int, n: int) -> Solution:
    """(2n - 1)/n^2."""
    by_rank = [float(calc.context_score_elements(tokens, n, rank)) for rank in range(n)]
    share = by_rank[-1] / sum(by_rank)
    return Solution(
        share,
        [
            f"All scores: {calc.count_text(sum(by_rank))}, about {tokens:,}^2 / 2.",
            f"The last {tokens // n:,} tokens look at all before them and at half of their own: "
            f"{calc.count_text(by_rank[-1])}.",
            f"{100 * share:.3g}%, about (2n - 1)/n^2; zigzag would give each rank {100 / n:.3g}%.",
        ],
        [
            Trap(
                "an equal share",
                1 / n,
                "Tokens are shared equally, but late tokens look at more keys.",
            ),
            Trap(
                "the share of the first rank",
                by_rank[0] / sum(by_rank),
                "The first rank's tokens see only each other; the last rank's see everything.",
            ),
            Trap(
                "without the mask's half on the diagonal",
                2 / n,
                "The last rank computes only one half of its own block.",
            ),
        ],
    )
