"""Serve a GPT: keys and values of many sequences in one cache, and one forward for all of them.

Read in this order:

    caches.py           what a cache does; rungs 1 and 2: no cache, and contiguous regions
    pages.py            rung 3: pages, shared between sequences
    decoder.py          one forward for prompts and single tokens together
    sampling.py         the next token from logits
    requests.py         what clients ask for, how far each answer is, and traces of arrivals
    scheduler.py        which tokens the next pass computes: five rungs
    serving_engine.py   Engine: requests that come at any time, a pass per step
    parallel_decoders.py  a model cut over ranks, by heads or by layers
    on_ranks.py         an Engine on each of these ranks: one leads, the others follow
    metrics.py          how long users wait, each measure defined once
"""

from labkit.serving.caches import ContiguousCache, NoCache, Piece, SlotUse
from labkit.serving.decoder import Decoder
from labkit.serving.metrics import Timing, goodput, percentile, replay, throughput
from labkit.serving.on_ranks import Leader, agreed_num_pages, follow
from labkit.serving.pages import PagedCache
from labkit.serving.parallel_decoders import PipelineDecoder, TensorParallelDecoder
from labkit.serving.requests import Arrival, Request, Sampling, poisson_trace
from labkit.serving.scheduler import (
    Chunk,
    Plan,
    State,
    chunked_prefill,
    continuous,
    preempting,
    priorities,
    static_batches,
)
from labkit.serving.serving_engine import Engine, Output

__all__ = [
    "Arrival",
    "Chunk",
    "ContiguousCache",
    "Decoder",
    "Engine",
    "Leader",
    "NoCache",
    "Output",
    "PagedCache",
    "Piece",
    "PipelineDecoder",
    "Plan",
    "Request",
    "Sampling",
    "SlotUse",
    "State",
    "TensorParallelDecoder",
    "Timing",
    "agreed_num_pages",
    "chunked_prefill",
    "continuous",
    "follow",
    "goodput",
    "percentile",
    "poisson_trace",
    "preempting",
    "priorities",
    "replay",
    "static_batches",
    "throughput",
]
