"""Serve a GPT: keys and values of many sequences in one cache, and one forward for all of them.

Read in this order:

    caches.py      what a cache does; rungs 1 and 2: no cache, and contiguous regions
    pages.py       rung 3: pages, shared between sequences
    decoder.py     one forward for prompts and single tokens together
"""

from labkit.serving.caches import ContiguousCache, NoCache, Piece, SlotUse
from labkit.serving.decoder import Decoder
from labkit.serving.pages import PagedCache

__all__ = ["ContiguousCache", "Decoder", "NoCache", "PagedCache", "Piece", "SlotUse"]
