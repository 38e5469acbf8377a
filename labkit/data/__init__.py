"""Data: real text as equal batches on every rank, and samples in files that feed many ranks.

    text.py       start here: bytes of a text, the global batch of a step, a rank's share of it

Feeding many ranks, in this order:

    shards.py     samples in shard files with an index; which reader gets which shard
    order.py      a full permutation, a shuffle buffer, and how well each shuffles
    feed.py       the ids that come next, sources mixed by weight, exact resume, reading ahead
    packing.py    documents in sequences of one length: cut, or fitted and padded
"""

from labkit.data.text import IGNORED, Batch, Batches, Corpus, counted

__all__ = ["IGNORED", "Batch", "Batches", "Corpus", "counted"]
