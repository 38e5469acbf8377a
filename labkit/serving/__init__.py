"""Serve a GPT: keys and values of many sequences in one cache, and one forward for all of them.

Read in this order:

    caches.py           what a cache does; rungs 1 and 2: no cache, and contiguous regions
    pages.py            rung 3: pages, shared between sequences
    decoder.py          one forward for prompts and single tokens together
    sampling.py         the next token from logits
    requests.py         what clients ask for, how far each answer is, and traces of arrivals
    scheduler.py        which tokens the next pass computes: five rungs
    serving_engine.py   Engine: requests that come at any time, a pass per step
    metrics.py          how long users wait, each measure defined once
    local_server.py     serve(model): OpenAI's protocol on this machine
"""

from labkit.serving.caches import ContiguousCache, NoCache, Piece, SlotUse
from labkit.serving.decoder import Decoder
from labkit.serving.local_server import Server, serve
from labkit.serving.metrics import Timing, goodput, percentile, replay, throughput
from labkit.serving.pages import PagedCache
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
from labkit.serving.serving_engine import Engine, Output, QueueFull

__all__ = [
    "Arrival",
    "Chunk",
    "ContiguousCache",
    "Decoder",
    "Engine",
    "NoCache",
    "Output",
    "PagedCache",
    "Piece",
    "Plan",
    "QueueFull",
    "Request",
    "Sampling",
    "Server",
    "SlotUse",
    "State",
    "Timing",
    "chunked_prefill",
    "continuous",
    "goodput",
    "percentile",
    "poisson_trace",
    "preempting",
    "priorities",
    "replay",
    "serve",
    "static_batches",
    "throughput",
]
