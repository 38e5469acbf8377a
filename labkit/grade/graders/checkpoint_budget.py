"""How often checkpointed blocks run, and what they keep in memory."""

from collections import Counter

from labkit.grade.graders.checkpoint_inputs import Given
from labkit.grade.graders.checkpoint_watch import Seen
from labkit.grade.outcome import Finding, Outcome

_GENERATOR_BYTES = 5056  # torch's on the CPU
_SMALL_BYTES = 512


def other_passes(seen: Seen, given: Given) -> Finding | None:
    """Blocks that do not run twice."""
    times = Counter(block for block, _ in seen.passes)
    for block in range(given.num_blocks):
        if times[block] == 1:
            return _over(
                "keeps the activations",
                f"block {block} runs once, and {max(seen.kept_bytes):,} bytes stay in memory until "
                "backward: nothing is computed again, so everything has to be there",
                1,
            )
        if times[block] > 2:
            return _over(
                "runs the block more than twice",
                f"block {block} runs {times[block]} times, and two are enough: one forward, whose "
                "graph nobody needs, and one in backward, which gives all gradients together",
                2,
            )
    return None


def more_bytes(seen: Seen, given: Given) -> Finding | None:
    """More between the passes than x, and more after backward than gradients."""
    most_bytes, x_bytes = max(seen.kept_bytes), given.x.nbytes
    if most_bytes > _GENERATOR_BYTES + _SMALL_BYTES:
        if most_bytes <= x_bytes + _GENERATOR_BYTES + _SMALL_BYTES:
            return _over(
                "keeps a copy of x",
                f"{most_bytes:,} bytes stay in memory besides x, which itself has {x_bytes:,}: "
                "whoever gave x has it in memory already. Keep x, with save_for_backward",
                2,
            )
        return _over(
            "keeps the graph of the first pass",
            f"the block is computed again, and {most_bytes:,} bytes of the first pass stay in "
            f"memory until then, besides x, which has {x_bytes:,}: nothing is saved, and a forward "
            "pass is paid. Compute the first time without a graph, and keep x only",
            1,
        )
    if seen.kept_after_bytes > given.num_blocks * (x_bytes + _GENERATOR_BYTES) + _SMALL_BYTES:
        return _over(
            "keeps what it computed again",
            f"after backward {seen.kept_after_bytes:,} bytes are there besides parameters and "
            "gradients: as backward goes through the blocks, the activations of one after the "
            "other come back and stay. Hold the second pass in local variables only",
            3,
        )
    return None


def _over(name: str, explanation: str, hint: int) -> Finding:
    return Finding(Outcome.OVER_BUDGET, name, explanation, hint=hint)
