"""Choose the next token: greedy, by temperature, among the k best, or among the most likely ones.

    logits         a  2.1   b  1.7   c  0.3   d -1.0
    temperature 1    0.53     0.36     0.09     0.02    softmax(logits / temperature)
    top_k=3          0.54     0.37     0.09     -       only the k most likely, scaled to 1
    top_p=0.8        0.60     0.40     -        -       the fewest that reach p together

The three filters apply in this order, as in Hugging Face transformers and in vLLM. Temperature 0
means greedy: the most likely token, without a draw.

Papers: Fan et al., arXiv:1805.04833 (top-k); Holtzman et al., arXiv:1904.09751 (top-p, "nucleus").
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labkit import arguments


@dataclass(frozen=True)
class Sampling:
    """How to draw tokens. top_k=None and top_p=1: among all. seed: of the request's own draws."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        arguments.number("temperature", self.temperature, "0 (greedy) or more", least=0)
        arguments.number("top_p", self.top_p, "above 0, at most 1", above=0, most=1)
        if self.top_k is not None:
            arguments.whole("top_k", self.top_k, "1 or more tokens, or None for all")


GREEDY = Sampling(temperature=0.0)


def sample(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """The next token. It takes one draw from the generator, or none if it is greedy."""
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    weights_V, tokens_V = (
        (logits_V.double() / sampling.temperature).softmax(0).sort(descending=True, stable=True)
    )
    if sampling.top_k is not None:
        weights_V[sampling.top_k :] = 0
    weights_V /= weights_V.sum()
    # A token counts if those that are more likely do not reach top_p by themselves.
    weights_V[weights_V.cumsum(0) - weights_V >= sampling.top_p] = 0
    return int(tokens_V[torch.multinomial(weights_V, 1, generator=generator)])
