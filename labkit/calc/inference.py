"""Inference: the time of a pass, how many requests fit, and what speculation gains.

A pass computes some new tokens, of all requests together. It reads each weight once, whatever the
number of tokens (of experts those that some token chose), and the keys and values that are cached.
While it reads, it computes:

    memory        (N w + c k) / bandwidth      N parameters of w bytes, c cached tokens of k bytes
                                               of E experts, k of which a token goes through, the
                                               share 1 - (1 - k/E)^t is read
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
from dataclasses import replace
from typing import NamedTuple

from labkit import arguments
from labkit.calc.compute import flops_per_token
from labkit.calc.hardware import GPU, gpu
from labkit.calc.memory.kv_cache import cache_bytes, checked_itemsize
from labkit.calc.models import ModelConfig, model
from labkit.calc.parameters import mlp_parameters, num_parameters
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
    itemsize: float = 2,
    cache_itemsize: float | None = None,
    tp: int = 1,
    usable: float = 0.9,
) -> Result:
    """Return how many requests have their cache beside the weights, a whole number.

    tokens: room that each request holds. In a contiguous cache that is its longest length, in a
    paged one the tokens that it has. page_size: tokens of a page; only whole pages are held.
    itemsize: bytes of a weight, 0.5 for 4 bits. cache_itemsize: bytes of a cached number; None: as
    many. tp: GPUs that share weights and caches. usable: the share of the memory for both.
    requests_that_fit("llama2-13b", "a100-40g", 2048) == 7
    """
    config, accelerator = model(config), gpu(accelerator)
    arguments.number("tokens", tokens, "a request has tokens", above=0)
    arguments.number(
        "usable",
        usable,
        "give the share that weights and caches may take, as 0.9",
        above=0,
        most=1,
    )
    weights = float(num_parameters(config)) * checked_itemsize(itemsize)
    weights /= arguments.counted("tp", tp)
    cache = cache_bytes(
        config,
        tokens,
        itemsize=itemsize if cache_itemsize is None else cache_itemsize,
        tp=tp,
        page_size=page_size,
    )
    each = float(cache)
    left = usable * accelerator.memory_bytes - weights
    parts = {
        "weights": Result(weights, "bytes", "weights"),
        "left for caches": Result(max(0, left), "bytes", "left for caches"),
        "cache of a request": cache,
    }
    return Result(
        max(0, math.floor(left / each)),
        "",
        "requests that fit",
        f"(u M - N w{' / t' if tp > 1 else ''}) / cache of a request",
        f"({usable:g} * {accelerator.memory_bytes:.4g} - {weights:.4g}) / {each:.4g}",
        convention="activations and CUDA graphs are in the share that is not usable; vLLM takes "
        "them off the usable share, and has 1 to 2% fewer blocks (vLLM PR 2031)",
        source="Kwon et al., PagedAttention, SOSP 2023, section 3",
        parts=parts,
    )


def pass_time(
    config: ModelConfig | str,
    accelerator: GPU | str,
    tokens: float,
    cached: float = 0,
    *,
    itemsize: float = 2,
    cache_itemsize: float | None = None,
    tp: int = 1,
) -> Result:
    """Return the least time of a pass: reading weights and caches, or computing, if that is longer.

    tokens: new tokens of all requests: one of each that decodes, many of a prompt. cached: tokens
    of all requests whose keys and values are read. itemsize: bytes of a weight, 0.5 for 4 bits.
    cache_itemsize: bytes of a cached number; None: as many. tp: GPUs that share the work; their
    collectives are not counted.
    str(pass_time("llama3-8b", "h100", 1)) == "4.79 ms"
    """
    arguments.number("tokens", tokens, "a pass computes at least one", above=0)
    arguments.number("cached", cached, "0 or more", least=0)
    work = _Work.of(config, accelerator, itemsize, cache_itemsize, tp)
    weights_s, cache_s = work.weights_s(tokens), work.cache_s(tokens, cached)
    memory_s, arithmetic_s = weights_s + cache_s, tokens * work.token_s
    speed = ("bandwidth", "peak") if tp == 1 else ("(n bandwidth)", "(n peak)")
    read, made = f"c k / {speed[0]}", f"2 N t / {speed[1]}"
    parts = {
        "weights": Result(weights_s, "seconds", "weights", f"N w / {speed[0]}"),
        "cache": Result(cache_s, "seconds", "cache", read),
        "arithmetic": Result(arithmetic_s, "seconds", "arithmetic", made),
    }
    return Result(
        max(memory_s, arithmetic_s),
        "seconds",
        "time of a pass",
        f"max((N w + c k) / {speed[0]}, {made})" + (", n GPUs" if tp > 1 else ""),
        f"max({memory_s:.4g}, {arithmetic_s:.4g})",
        convention="memory and arithmetic overlap; attention's scores are not counted"
        + (f"; {work.share_read(tokens):.3g} of the experts read" if work.expert_bytes else ""),
        source=_POPE,
        parts=parts,
    )


def compute_bound_batch(
    config: ModelConfig | str,
    accelerator: GPU | str,
    cached: float = 0,
    *,
    itemsize: float = 2,
    cache_itemsize: float | None = None,
) -> Result:
    """Return the batch size from which on a decoding pass is bound by arithmetic.

    cached: tokens that each request has in its cache. Only this request reads them, so they raise
    that size. If reading them takes longer than a token's arithmetic, no batch is large enough and
    the result is infinite. itemsize, cache_itemsize: as in `pass_time`. ValueError below 0 tokens.
    round(float(compute_bound_batch("llama3-8b", "h100"))) == 295
    """
    arguments.number("cached", cached, "0 or more", least=0)
    work = _Work.of(config, accelerator, itemsize, cache_itemsize, 1)
    cache_s = work.cache_s(1, cached)
    left_s = work.token_s - cache_s
    batch = math.inf
    if left_s > 0:
        for _ in range(100):  # from above: fewer tokens read fewer experts
            batch = work.weights_s(batch) / left_s
    return Result(
        batch,
        "",
        "batch at which arithmetic takes as long as memory",
        "(N w / bandwidth) / (2 N / peak - c k / bandwidth)",
        f"{work.weights_s(batch):.4g} / ({work.token_s:.4g} - {cache_s:.4g})",
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
    itemsize: float = 2,
    cache_itemsize: float | None = None,
    tp: int = 1,
) -> Result:
    """Return how much longer a decoding pass takes when it also computes a chunk of a prompt.

    All requests of the batch wait that much longer for their next token. batch: requests that
    decode, with `cached` tokens each. chunk: tokens of the prompt, or a whole prompt. Up to the
    batch at which arithmetic is the bound, a chunk costs no more than the experts that it reads.
    itemsize, cache_itemsize, tp: as in `pass_time`.
    """
    sizes = {"itemsize": itemsize, "cache_itemsize": cache_itemsize, "tp": tp}
    both = {
        name: pass_time(config, accelerator, tokens, batch * cached, **sizes)  # type: ignore[arg-type]
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


class _Work(NamedTuple):
    """Bytes that one of tp GPUs reads, and the time in which it computes a token."""

    config: ModelConfig
    bandwidth: float
    other_bytes: float
    """Weights that every pass reads."""
    expert_bytes: float
    """Weights of all routed experts."""
    layer_token_bytes: float
    """A cached token in one layer."""
    token_s: float
    """To compute a token."""

    @classmethod
    def of(
        cls,
        config: ModelConfig | str,
        accelerator: GPU | str,
        itemsize: float,
        cache_itemsize: float | None,
        tp: int,
    ) -> _Work:
        config, accelerator = model(config), gpu(accelerator)
        size = checked_itemsize(itemsize) / arguments.counted("tp", tp)
        cached = itemsize if cache_itemsize is None else cache_itemsize
        expert = mlp_parameters(config, config.expert_features)
        experts = config.expert_layers * config.num_experts * expert
        one = replace(config, layers=1, dense_layers=0, pattern=(), window=0)
        flops = flops_per_token(config, training=False, attention=False)
        return cls(
            config,
            accelerator.memory_bytes_per_s,
            size * (float(num_parameters(config)) - experts),
            size * experts,
            float(cache_bytes(one, 1, itemsize=cached, tp=tp)),
            float(flops) / (accelerator.flops_per_s * tp),
        )

    def share_read(self, tokens: float) -> float:
        """Return the share of the experts that so many tokens choose on average."""
        config = self.config
        return 1 - (1 - config.top_k / config.num_experts) ** tokens

    def weights_s(self, tokens: float) -> float:
        """Return the seconds to read the weights that so many tokens go through."""
        experts = self.expert_bytes * self.share_read(tokens) if self.expert_bytes else 0
        return (self.other_bytes + experts) / self.bandwidth

    def cache_s(self, tokens: float, cached: float) -> float:
        """Return the seconds to read caches; of a window no more than each token can see."""
        seen = 0.0
        for kind in self.config.kinds:
            most = tokens * self.config.window if kind.mixer == "window" else cached
            seen += 0 if kind.mixer in ("recurrent", "none") else min(most, cached)
        return seen * self.layer_token_bytes / self.bandwidth
