"""Attention over a cut sequence: seconds, bytes sent, and the most memory that a rank holds.

    gathered     keys and values of the whole sequence on every rank, torch's attention: 1.00
    ring         contiguous and zigzag, blocks of plain matrix products
    ulysses      heads instead of tokens, torch's attention

One layer, forward and backward, under a causal mask, T tokens in all whatever the number of ranks.
Times alternate in one run and are medians of the slowest rank. Blocks written out take 1.5 times as
long as torch's fused attention before anything is sent, so a ring's seconds are not its bytes'.
Gathering computes masked scores, too: torch skips them only without a mask of its own.
With more ranks than cores whoever waits lends its core, and balance shows less than it would.
Bytes are the journal's, of the rank that sends most; memory is that of tensors, followed by
labkit.memory.Meter, with q, k, v and their gradients: not workspaces within an operation.
`python benchmarks/context_parallel.py [tokens]`.
"""

from collections.abc import Callable

import torch
from measure import alternate, command_line, machine

import labkit
from labkit import arguments
from labkit.context_parallel import (
    Placement,
    contiguous,
    gathered_attention,
    ring_attention,
    shard_sequence,
    ulysses_attention,
    zigzag,
)
from labkit.memory import Meter

NUM_TOKENS = 2048
HEADS, HEADS_OF_KEYS, FEATURES = 8, 4, 64
REPETITIONS = 7
CANDIDATES: dict[str, tuple[Callable[..., torch.Tensor], Placement]] = {
    "gathered": (gathered_attention, contiguous),
    "ring, contiguous": (ring_attention, contiguous),
    "ring, zigzag": (ring_attention, zigzag),
    "ulysses": (ulysses_attention, contiguous),
}
YARDSTICK = "gathered"


def layer(world: labkit.Group, name: str, num_tokens: int) -> Callable[[], None]:
    """Return a pass forward and backward of one candidate, on random numbers."""
    attention, placement = CANDIDATES[name]
    num_own = len(shard_sequence(torch.arange(num_tokens), world, placement, 0))
    q, k, v = (
        torch.randn(1, heads, num_own, FEATURES, requires_grad=True)
        for heads in (HEADS, HEADS_OF_KEYS, HEADS_OF_KEYS)
    )
    grad = torch.randn_like(q)

    def step() -> None:
        q.grad = k.grad = v.grad = None
        attention(q, k, v, world, True, placement, num_tokens=num_tokens).backward(grad)

    return step


def seconds_of_all(world: labkit.Group, num_tokens: int) -> dict[str, float]:
    """By name, median seconds of the slowest rank."""
    steps = {name: layer(world, name, num_tokens) for name in CANDIDATES}
    return alternate(world, steps, REPETITIONS)


def peak_of_one(world: labkit.Group, name: str, num_tokens: int) -> int:
    """Peak bytes of a first pass."""
    with Meter() as meter:
        layer(world, name, num_tokens)()
    return meter.usage.peak_bytes


def main() -> None:
    """Print seconds, bytes and memory, each with its ratio to gathering's."""
    parser = command_line(__doc__)
    parser.add_argument("tokens", nargs="?", type=arguments.count, default=NUM_TOKENS)
    num_tokens = parser.parse_args().tokens
    print(f"{num_tokens} tokens, {HEADS} heads, {HEADS_OF_KEYS} of keys. {machine()}")
    for world_size in (2, 4):
        seconds = labkit.run(seconds_of_all, world_size, (num_tokens,), timeout=600).values[0]
        found = {}
        for name in CANDIDATES:
            once = labkit.run(peak_of_one, world_size, (name, num_tokens))
            sent_bytes = max(traffic.sent_bytes for traffic in once.traffic)
            found[name] = (seconds[name] * 1e3, sent_bytes / 2**20, max(once.values) / 2**20)
        print(f"{world_size} ranks {'':>18} time            sent             peak memory")
        for name, figures in found.items():
            columns = [
                f"{figure:>8.1f} {unit} {figure / yardstick:.2f}"
                for figure, yardstick, unit in zip(
                    figures, found[YARDSTICK], ("ms", "MiB", "MiB"), strict=True
                )
            ]
            print(f"  {name:<18}" + "  ".join(columns))


if __name__ == "__main__":
    main()
