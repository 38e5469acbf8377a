"""What a layer keeps, as numbers that can each be wrong."""

from collections.abc import Callable
from dataclasses import dataclass

from labkit.grade.graders.activation_questions import Layer

Ranks = Callable[[Layer], int]


def by_sequence(layer: Layer) -> int:
    """Ranks that share what is cut along the sequence."""
    return layer.t if layer.sequence_parallel else 1


def by_tensor(layer: Layer) -> int:
    """Ranks that share heads and features."""
    return layer.t


def by_none(layer: Layer) -> int:
    """Nobody shares."""
    return 1


@dataclass(frozen=True)
class Idea:
    """Bytes per token and feature, or per score; and ranks that share them. As it stands: right."""

    outside: float = 8 + 2
    """Of what is whole without sequence parallelism: 8 of inputs, 2 of masks."""
    inside: float = 8 + 16
    """Of attention and of the MLP."""
    per_score: float = 2 + 1 + 2
    statistic: float = 4
    layer_input: float = 2
    outside_ranks: Ranks = by_sequence
    inside_ranks: Ranks = by_tensor
    score_ranks: Ranks = by_tensor
    statistic_ranks: Ranks = by_tensor
    input_ranks: Ranks = by_sequence
    heads: Callable[[Layer], int] = lambda layer: layer.a
    scores_per_row: Callable[[Layer], int] = lambda layer: layer.s
    flash_after_selective: bool = True

    def nbytes(self, layer: Layer) -> float:
        """What is kept by it."""
        tokens = layer.s * layer.b
        if layer.recompute == "full":
            return self.layer_input * tokens * layer.h / self.input_ranks(layer)
        kept = tokens * layer.h * self.outside / self.outside_ranks(layer)
        kept += tokens * layer.h * self.inside / self.inside_ranks(layer)
        rows = tokens * self.heads(layer)
        if layer.flash and (self.flash_after_selective or layer.recompute == "none"):
            kept += rows * self.statistic / self.statistic_ranks(layer)
        elif not layer.flash and layer.recompute == "none":
            kept += rows * self.scores_per_row(layer) * self.per_score / self.score_ranks(layer)
        return kept
