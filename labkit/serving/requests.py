"""Requests and the progress of their answers: sampling, generations, traces of arrivals.

    Request      prompt  T h e _ c a t        max_new_tokens=4
    Generation   tokens  T h e _ c a t _ s    two of four are there; longest = 7 + 4

A request never changes. A generation is a request that an engine serves. A pass that computes its
last token adds one more.

A trace is a list of requests with the time at which each arrives, whether or not the engine is
ready for it (an open loop). Clients that wait for an answer before they ask again (a closed loop)
slow down with the engine, and hide how long its queue would be.

A request says how its tokens are drawn: greedy, by temperature, among the k most likely ones, or
among the fewest that reach a probability.

    logits         a  2.1   b  1.7   c  0.3   d -1.0
    temperature 1    0.53     0.36     0.09     0.02    softmax(logits / temperature)
    top_k=3          0.54     0.37     0.09     -       only the k most likely, scaled to 1
    top_p=0.8        0.60     0.40     -        -       the fewest that reach p together

The three filters apply in this order, as in Hugging Face transformers and in vLLM. Temperature 0
means greedy: the most likely token, without a draw.

Papers: Fan et al., arXiv:1805.04833 (top-k); Holtzman et al., arXiv:1904.09751 (top-p, "nucleus").
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from labkit import arguments

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. top_k=None and top_p=1: draw among all tokens. seed: the request's."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        arguments.number("temperature", self.temperature, "0 (greedy) or more", least=0)
        arguments.number("top_p", self.top_p, "above 0, at most 1", above=0, most=1)
        arguments.whole("seed", self.seed, "of 64 bits", least=-(2**63), most=2**64 - 1)
        if self.top_k is not None:
            arguments.whole("top_k", self.top_k, "1 or more tokens, or None for all")


GREEDY = Sampling(temperature=0.0)


@dataclass(frozen=True)
class Request:
    """A prompt and how to continue it.

    stop: the answer ends with the first of these tokens, which is its last one.
    priority: a smaller number is served first, as in vLLM; one scheduler looks at it.
    prior_output: the first tokens of the answer, if another engine has returned them already. They
    count as new tokens. The next ones are those that the other engine would have drawn.
    """

    prompt: Sequence[int]
    max_new_tokens: int = 16
    sampling: Sampling = GREEDY
    stop: frozenset[int] = frozenset()
    priority: int = 0
    prior_output: Sequence[int] = ()


@dataclass(eq=False)
class Generation:
    """A request in an engine, and its tokens so far.

    id: number of the arrival, and of the sequence in the cache. tokens: the prompt and the answer.
    """

    id: int
    request: Request
    tokens: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = [*self.request.prompt, *self.request.prior_output]

    @cached_property
    def generator(self) -> torch.Generator:
        """Return the request's own random generator, so that other requests do not change its
        answer."""
        import torch

        generator = torch.Generator().manual_seed(self.request.sampling.seed)
        for _ in self.request.prior_output:  # each took one draw: see `sample`
            torch.rand((), generator=generator, dtype=torch.float64, device="cpu")
        return generator

    @property
    def longest(self) -> int:
        """The most tokens that it can have, prompt and answer."""
        return len(self.request.prompt) + self.request.max_new_tokens

    @property
    def finish_reason(self) -> str | None:
        """OpenAI's reason for the end of the answer, "stop" or "length"; None: it has not ended."""
        if len(self.tokens) > len(self.request.prompt) and self.tokens[-1] in self.request.stop:
            return "stop"
        return "length" if len(self.tokens) == self.longest else None


@dataclass(frozen=True)
class ScheduledTokens:
    """Consecutive tokens of one sequence, whose keys, values and logits a pass computes.

    They are a whole prompt, a chunk of one, or a single new token. sequence: its number. start: the
    number of cached tokens, which is the position of tokens[0]. num_logits: the pass returns the
    logits of this many last tokens.
    """

    sequence: int
    tokens: list[int]
    start: int
    num_logits: int = 1

    @property
    def end(self) -> int:
        """The number of the sequence's tokens that are cached after the pass."""
        return self.start + len(self.tokens)


class Arrival(NamedTuple):
    """A request of a trace, and when it arrives, in seconds from the beginning of the trace."""

    at_s: float
    request: Request


def poisson_trace(
    num_requests: int,
    per_second: float,
    *,
    vocab: int = 256,
    mean_prompt: int = 16,
    mean_answer: int = 16,
    max_new_tokens: int = 64,
    seed: int = 0,
) -> list[Arrival]:
    """Requests at random moments, `per_second` on average: exponential gaps (a Poisson process).

    Prompts have 1 to 2 * mean_prompt - 1 tokens. One token in `mean_answer` is a stop token. An
    untrained model draws all tokens about equally often, so answers have `mean_answer` tokens on
    average, and few reach max_new_tokens. As in real traffic, the reservation is much longer than
    the answer.
    """
    draw, at_s, trace = random.Random(seed), 0.0, []
    stop = frozenset(range(vocab // mean_answer))
    for _ in range(num_requests):
        at_s += draw.expovariate(per_second)
        prompt = [draw.randrange(vocab) for _ in range(draw.randint(1, 2 * mean_prompt - 1))]
        sampling = Sampling(temperature=1.0, seed=draw.getrandbits(31))
        trace.append(Arrival(at_s, Request(prompt, max_new_tokens, sampling, stop)))
    return trace


def distribution(logits_XV: Tensor, sampling: Sampling) -> Tensor:
    """p_XV in float64: the probability of each token after the filters. Greedy: 1 for one token.

    ValueError: a logit is NaN or infinite, so no token is the most likely one.
    """
    import torch

    _require_finite(float(logits_XV.amax(-1).abs().max()))  # NaN if any is
    if sampling.temperature == 0:
        return torch.nn.functional.one_hot(logits_XV.argmax(-1), logits_XV.shape[-1]).cpu().double()
    # Subtract the largest logit first: a tiny temperature would make it infinite.
    above_XV = logits_XV.cpu().double() - logits_XV.amax(-1, keepdim=True).cpu()
    weights_XV = (above_XV / sampling.temperature).softmax(-1)
    weights_XV, tokens_XV = weights_XV.sort(descending=True, stable=True)
    if sampling.top_k is not None:
        weights_XV[..., min(sampling.top_k, weights_XV.shape[-1]) :] = 0
    weights_XV /= weights_XV.sum(-1, keepdim=True)
    # A token counts if those that are more likely do not reach top_p by themselves.
    weights_XV[weights_XV.cumsum(-1) - weights_XV >= sampling.top_p] = 0
    weights_XV /= weights_XV.sum(-1, keepdim=True)
    return torch.zeros_like(weights_XV).scatter(-1, tokens_XV, weights_XV)


def draw_token(weights_V: Tensor, uniform: float) -> int:
    """Return the token at the place `uniform`, in [0, 1), of all weights laid end to end.

    Weights need not add up to 1.

    weights     a 0.5      b 0    c 0.25   d 0.25
    uniform     0 ... 0.5         ... 0.75 ... 1
    """
    import torch

    until_V = weights_V.cumsum(0)
    return int(torch.searchsorted(until_V, uniform * until_V[-1], right=True))


def sample(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Return the next token. It takes one draw from the generator, or none if it is greedy.

    ValueError as in `distribution`.
    """
    import torch

    if sampling.temperature == 0:  # without a list of all probabilities
        largest, token = logits_V.max(0)
        _require_finite(float(largest))
        return int(token)
    uniform = torch.rand((), generator=generator, dtype=torch.float64, device="cpu").item()
    return draw_token(distribution(logits_V, sampling), uniform)


def _require_finite(largest: float) -> None:
    if not math.isfinite(largest):
        raise ValueError(f"the largest logit is {largest}; check the model's weights")
