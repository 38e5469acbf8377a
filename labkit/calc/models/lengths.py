"""How many tokens a sequence has: those given, or the model's context; of a table, no more than it.

Rotations have an angle for every position; of learned positions there is a row for each of the
first `context`, and no more.
"""

from __future__ import annotations

from labkit.calc.checked_numbers import check_ranks
from labkit.calc.models.model_config import ModelConfig


def sequence_length(config: ModelConfig, sequence: int | None) -> int:
    """Tokens of a sequence; None: the model's context. ValueError for positions it has not."""
    if sequence is None:
        return config.context
    length = check_ranks(sequence, "sequence")
    if config.learned_positions and length > config.context:
        raise ValueError(
            f"sequence={length}: the model has learned {config.context} positions, and none for "
            f"the tokens after them; give {config.context} or fewer, or a ModelConfig with a "
            "larger context"
        )
    return length
