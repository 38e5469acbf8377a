"""The journal's format on disk: one fixed-size record per operation.

rank-2.journal   88 bytes per operation: numbers, times
rank-2.names     one JSON line per name: its number is its line; `origin` names a list of sites,
                 the reader's lines from the call outwards
"""

import struct

# kind, flags, reduce, group, dtype, sequence, peer, shape, splits, site, origin,
# label, payload, sent and received bytes, times posted, waited, done
RECORD = struct.Struct("<BBBxIIIiIIIIIQQQddd")
TIME = struct.Struct("<d")
FLAGS_AT = 1
WAITED_AT = RECORD.size - 2 * TIME.size
DONE_AT = RECORD.size - TIME.size

BLOCKING, FAILED, SHARED, IN_BACKGROUND = 1, 2, 4, 8
NO_PEER = -1
NO_NAME = 2**32 - 1

KINDS = (
    "send recv all_reduce reduce_scatter all_gather all_to_all broadcast gather scatter barrier "
    "split region share_memory close"
).split()
KIND_CODE = {kind: code for code, kind in enumerate(KINDS, start=1)}  # 0 marks an unused record
REDUCES = [None, "sum", "mean", "max", "min"]
REDUCE_CODE = {reduce: code for code, reduce in enumerate(REDUCES)}
