"""Serve a GPT: one cache for the keys and values of many sequences, and one forward for all.

Read in this order, and start here:

    plain.py            greedy answers: a cache per sequence, one pass for all that run

then:

    caches.py           what a cache does; rung 1: no cache; rung 2: contiguous regions
    pages.py            rung 3: pages, shared between sequences
    decoder.py          one forward for prompts and single tokens together
    requests.py         requests, sampling, answers so far, traces of arrivals
    scheduler.py        which tokens the next pass computes: five rungs
    serving_engine.py   Engine: requests that come at any time, a pass per step
    swapping.py         SwappingEngine: keys and values of preempted requests wait in host memory
    metrics.py          how long users wait, each measure defined once

Fewer bits, and several tokens in a pass:

    quantized.py        weights of 8 and 4 bits, keys and values of 8 bits, training with rounded
                        weights
    speculative.py      a small model drafts, the large one checks several tokens in a pass

Several ranks:

    parallel_decoders.py   a model cut over ranks, by heads or by layers
    on_ranks.py            an Engine on each of these ranks: one leads, the others follow
    disaggregated.py       prompts on one rank, single tokens on another
    replicas.py            engines in processes of their own, which fail and restart alone
    request_router.py      the replica of each request, and another one after a failure

A server, which needs the extra `serve`:

    byte_text.py        prompts and chats as bytes, and text from tokens that come one by one
    engine_thread.py    an engine for the tasks of an event loop; the numbers of /metrics
    openai_api.py       bodies of requests and replies; guard.py bounds requests
    server.py           serve(model): all of it on this machine, in this process or in replicas
"""

from typing import TYPE_CHECKING

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit.serving.caches import ContiguousCache, NoCache, PagedCache
    from labkit.serving.decoder import Decoder
    from labkit.serving.disaggregated import DisaggregatedEngine, prefill
    from labkit.serving.metrics import Timing, goodput, percentile, replay, throughput
    from labkit.serving.on_ranks import Leader, agreed_num_pages, follow
    from labkit.serving.pages import Pages
    from labkit.serving.parallel_decoders import PipelineDecoder, TensorParallelDecoder
    from labkit.serving.quantized import (
        Int8PagedCache,
        compare_quantized_training,
        logits_error,
        quantize,
        weight_bytes,
    )
    from labkit.serving.replicas import Replicas
    from labkit.serving.request_router import Load, Router, by_prefix, least_loaded, round_robin
    from labkit.serving.requests import Arrival, Request, Sampling, ScheduledTokens, poisson_trace
    from labkit.serving.scheduler import (
        chunked_prefill,
        continuous,
        preempting,
        priorities,
        static_batches,
    )
    from labkit.serving.server import serve
    from labkit.serving.serving_engine import Engine, Output, QueueFull
    from labkit.serving.speculative import SpeculativeEngine, accept
    from labkit.serving.swapping import SwappingEngine


__getattr__, __dir__, __all__ = lazy(__name__)
