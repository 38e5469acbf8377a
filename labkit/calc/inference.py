"""Inference: the time of a pass, how many requests fit, and what speculation gains.

A pass computes some new tokens, of all requests together. It reads each weight once, whatever the
number of tokens, and it reads the keys and values that are cached. While it reads, it computes:

    memory        (N w + c k) / bandwidth      N parameters of w bytes, c cached tokens of k bytes
    arithmetic    2 N t / peak                 t new tokens
    pass          the longer of the two

      time |            .'  arithmetic         decode: few tokens, bound by memory. One more request
           |__________.'                       adds only its cache.
           |   memory :                        prefill: many tokens, bound by arithmetic. A chunk
           +----------:------- tokens          of a prompt delays every request of its pass.
                 compute_bound_batch

This is the least time: attention's scores, kernel launches and communication are left out. On a
machine that was measured, `PassTime` has the same form with fitted numbers.

Papers: Pope et al., arXiv:2211.05102 (memory and arithmetic of a pass); Agrawal et al.,
"Sarathi-Serve", OSDI 2024 (a chunk's delay); Leviathan et al., arXiv:2211.17192 (speculation).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from labkit import arguments
from labkit.calc.compute import flops_per_token
from labkit.calc.hardware import GPU, gpu
from labkit.calc.memory.kv_cache import kv_cache_bytes_per_token
from labkit.calc.models import ModelConfig, model, num_parameters
from labkit.calc.result import Result

_POPE = "Pope et al., arXiv:2211.05102"
_LEVIATHAN = "Leviathan et al., arXiv:2211.17192"


class PassTime(NamedTuple):
    """Seconds of a pass, fitted to a measured machine by `measure.fit_pass_time`."""

    fixed_s: float
    """Seconds of every pass: reading the weights, calls."""
    token_s: float
    """Seconds for each new token."""
    cached_s: float
    """Seconds for each cached token that is read."""

    def __call__(self, tokens: float, cached: float = 0) -> float:
        """Return the seconds of a pass over `tokens` new tokens that reads `cached` ones."""
        return self.fixed_s + self.token_s * tokens + self.cached_s * cached


def requests_that_fit(
    config: ModelConfig | str,
    accelerator: GPU | str,
    tokens: float,
    *,
    page_size: int = 1,
    itemsize: int = 2,
    usable: float = 0.9,
) -> Result:
    """Return how many requests have their cache beside the weights, a whole number.

    tokens: room that each request holds. In a contiguous cache that is its longest length, in a
    paged one the tokens that it has. page_size: tokens of a page; only whole pages are held.
    usable: the share of the memory that weights and caches may take.
    requests_that_fit("llama2-13b", "a100-40g", 2048) == 7
    """
    config, accelerator = model(config), gpu(accelerator)
    arguments.number("tokens", tokens, "a request has tokens", above=0)
    page_size = arguments.counted("page_size", page_size)
    arguments.number(
        "usable", usable, "give the share that weights and caches may take, as 0.9", above=0
    )
    weights = float(num_parameters(config)) * arguments.counted("itemsize", itemsize)
    held = math.ceil(tokens / page_size) * page_size
    each = held * float(kv_cache_bytes_per_token(config, itemsize))
    left = usable * accelerator.memory_bytes - weights
    parts = {
        "weights": Result(weights, "bytes", "weights"),
        "left for caches": Result(max(0, left), "bytes", "left for caches"),
        "cache of a request": Result(each, "bytes", "cache of a request"),
    }
    return Result(
        max(0, math.floor(left / each)),
        "",
        "requests that fit",
        "(u M - N w) / (tokens k)",
        f"({usable:g} * {accelerator.memory_bytes:.4g} - {weights:.4g}) / ({held:,} * "
        f"{each / held:,.0f})",
        convention="nothing else needs memory than the share that is not usable",
        source="Kwon et al., PagedAttention, SOSP 2023, section 3",
        parts=parts,
    )


def pass_time(
    config: ModelConfig | str,
    accelerator: GPU | str,
    tokens: float,
    cached: float = 0,
    *,
    itemsize: int = 2,
) -> Result:
    """Return the least time of a pass: reading weights and caches, or computing, if that is longer.

    tokens: new tokens of all requests: one of each that decodes, many of a prompt. cached: tokens
    of all requests whose keys and values are read. itemsize: bytes of a weight, and of a cached
    number.
    str(pass_time("llama3-8b", "h100", 1)) == "4.79 ms"
    """
    config, accelerator = model(config), gpu(accelerator)
    arguments.number("tokens", tokens, "a pass computes at least one", above=0)
    arguments.number("cached", cached, "0 or more", least=0)
    weights_s, cached_s, token_s = _seconds_of_each(config, accelerator, itemsize)
    parts = {
        "weights": Result(weights_s, "seconds", "weights", "N w / bandwidth"),
        "cache": Result(cached * cached_s, "seconds", "cache", "c k / bandwidth"),
        "arithmetic": Result(tokens * token_s, "seconds", "arithmetic", "2 N t / peak"),
    }
    memory_s, arithmetic_s = weights_s + cached * cached_s, tokens * token_s
    return Result(
        max(memory_s, arithmetic_s),
        "seconds",
        "time of a pass",
        "max((N w + c k) / bandwidth, 2 N t / peak)",
        f"max({memory_s:.4g}, {arithmetic_s:.4g})",
        convention="memory and arithmetic overlap; attention's scores are not counted",
        source=_POPE,
        parts=parts,
    )


def compute_bound_batch(
    config: ModelConfig | str, accelerator: GPU | str, cached: float = 0, *, itemsize: int = 2
) -> Result:
    """Return the batch size from which on a decoding pass is bound by arithmetic.

    cached: tokens that each request has in its cache. Only this request reads them, so they raise
    that size. If reading them takes longer than a token's arithmetic, no batch is large enough and
    the result is infinite. ValueError below 0 tokens.
    round(float(compute_bound_batch("llama3-8b", "h100"))) == 295
    """
    config, accelerator = model(config), gpu(accelerator)
    arguments.number("cached", cached, "0 or more", least=0)
    weights_s, cached_s, token_s = _seconds_of_each(config, accelerator, itemsize)
    left_s = token_s - cached * cached_s
    return Result(
        weights_s / left_s if left_s > 0 else math.inf,
        "",
        "batch at which arithmetic takes as long as memory",
        "(N w / bandwidth) / (2 N / peak - c k / bandwidth)",
        f"{weights_s:.4g} / ({token_s:.4g} - {cached * cached_s:.4g})",
        convention="one new token of each request; attention's scores are not counted",
        source=_POPE,
    )


def chunk_delay(
    config: ModelConfig | str,
    accelerator: GPU | str,
    batch: float,
    chunk: float,
    cached: float = 0,
    *,
    itemsize: int = 2,
) -> Result:
    """Return how much longer a decoding pass takes when it also computes a chunk of a prompt.

    All requests of the batch wait that much longer for their next token. batch: requests that
    decode, with `cached` tokens each. chunk: tokens of the prompt, or a whole prompt. Up to the
    batch at which arithmetic is the bound, a chunk is free.
    """
    both = {
        name: pass_time(config, accelerator, tokens, batch * cached, itemsize=itemsize)
        for name, tokens in (("decode alone", batch), ("with the chunk", batch + chunk))
    }
    alone, together = both.values()
    return Result(
        together.value - alone.value,
        "seconds",
        "delay by a chunk of a prompt",
        "pass(batch + chunk) - pass(batch)",
        f"{together.value:.4g} - {alone.value:.4g}",
        convention="the chunk's own cached tokens are not counted",
        source="Agrawal et al., Sarathi-Serve, OSDI 2024",
        parts=both,
    )


def speculative_tokens(acceptance: float, num_drafted: int) -> Result:
    """Return the mean number of tokens that a pass of the target gives: accepted ones and its own.

    acceptance: the chance that a drafted token is accepted, each independent of the others.
    num_drafted: tokens that the draft proposes before each pass. ValueError: a chance outside 0
    to 1.
    round(float(speculative_tokens(0.8, 4)), 2) == 3.36
    """
    arguments.number("acceptance", acceptance, "give a chance, from 0 to 1", least=0, most=1)
    num_drafted = arguments.counted("num_drafted", num_drafted)
    return Result(
        sum(acceptance**place for place in range(num_drafted + 1)),
        "",
        "tokens of a pass of the target",
        "1 + a + ... + a^n = (1 - a^(n+1)) / (1 - a)",
        f"a = {acceptance:g}, n = {num_drafted}",
        convention="drafted tokens are accepted independently",
        source=f"{_LEVIATHAN}, equation 1",
    )


def speculative_speedup(acceptance: float, num_drafted: int, cost: float) -> Result:
    """Return the speedup of a request by speculation.

    cost: time of the draft's pass over that of the target's. The target's pass over the drafted
    tokens is assumed to last as long as over one token, which holds while it is bound by memory.
    round(float(speculative_speedup(0.8, 4, 0.1)), 2) == 2.4
    """
    tokens = speculative_tokens(acceptance, num_drafted)
    arguments.number("cost", cost, "0 or more", least=0)
    return Result(
        tokens.value / (num_drafted * cost + 1),
        "",
        "speed-up by speculation",
        "(1 - a^(n+1)) / ((1 - a) (n c + 1))",
        f"{tokens.value:.4g} / ({num_drafted} * {cost:g} + 1)",
        convention="a pass over drafted tokens takes as long as one over a single token",
        source=f"{_LEVIATHAN}, theorem 3.8",
        parts={"tokens of a pass": tokens},
    )


def _seconds_of_each(
    config: ModelConfig, accelerator: GPU, itemsize: int
) -> tuple[float, float, float]:
    """Return the seconds to read all weights, to read a cached token, to compute a new one."""
    itemsize = arguments.counted("itemsize", itemsize)
    bandwidth = accelerator.memory_bytes_per_s
    operations = flops_per_token(config, training=False, attention=False)
    return (
        itemsize * float(num_parameters(config)) / bandwidth,
        float(kv_cache_bytes_per_token(config, itemsize)) / bandwidth,
        float(operations) / accelerator.flops_per_s,
    )
