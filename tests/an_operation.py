"""An operation as a journal tells of it, for tests that run no ranks."""

from labkit.comm import Operation, Site

HERE = Site("train.py", 12, "step", "world.all_reduce(x)")


def an_operation(kind="all_reduce", sequence=1, *, at=HERE, **fields):
    """The n-th all_reduce of two ranks that began at second n; `at`: by which line.

    fields: what else differs, such as `done_s` for one that is over.
    """
    known = {
        "index": 0,
        "blocking": True,
        "group": (0, 1),
        "group_name": "world",
        "reduce": "sum" if kind == "all_reduce" else None,
        "peer": None,
        "dtype": "float32",
        "shape": (3,),
        "payload_bytes": 12,
        "sent_bytes": 12,
        "received_bytes": 12,
        "site": at,
        "origin": at,
        "posted_s": float(sequence),
        "waited_s": float(sequence),
        "done_s": None,
        "failed": False,
    }
    return Operation(kind=kind, sequence=sequence, **{**known, **fields})
