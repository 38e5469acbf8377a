"""Short runs on real ranks that give one number each: evidence that was measured.

runs.<module>.<function>(...) in a proof: runs.collectives.ring_sent_bytes(4, 16_000)

One module per group of topics, loaded when a proof uses it. A function takes numbers and texts,
returns a number (or a tuple of them) in base units, has `@real_run` above it, and says in its
docstring what runs where and what is counted. Bytes, counts and orders of events are the same on
every machine; a time is evidence only on throttled links, and then "about".
"""

from importlib import import_module
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(name)
    try:
        return import_module(f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"there is no labkit/interview/runs/{name}.py") from None
