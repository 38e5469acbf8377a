"""Dataclasses and timelines from JSON, and timelines as JSON.

    fitted(Lateness, {"num_messages": 2, ...})     Lateness(num_messages=2, ...)

A saved run is read with it, and so is what hosts send each other. It runs no code from the data.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import reprlib
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from labkit.comm import Operation, Region, Site, Timeline

_SITES = ("site", "origin")
_CALLERS = "callers"
_PLAIN: dict[Any, Any] = {int: int, float: (int, float), str: str, bool: bool, bytes: bytes}


@contextmanager
def damage_named() -> Iterator[None]:
    """Whatever does not fit in the data becomes a ValueError with what is wrong."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"it is damaged ({type(error).__name__}: {error})") from error


def parsed(text: bytes) -> Any:
    """JSON as plain data. ValueError for anything else."""
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"it is cut short or damaged: {error}") from error


def fitted(kind: Any, data: Any) -> Any:
    """`data` as a `kind`: a dataclass, or anything that may stand in one's annotations."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        kinds = [each for each in parts if each is not type(None)]
        if data is None or len(kinds) == 1:
            return None if data is None else fitted(kinds[0], data)
        (kind,) = (each for each in kinds if _hints(each).keys() == data.keys())
        return fitted(kind, data)
    if origin is list:
        return [fitted(parts[0], each) for each in data]
    if origin is tuple:
        items = itertools.repeat(parts[0], len(data)) if parts[-1] is ... else parts
        return tuple(fitted(*pair) for pair in zip(items, data, strict=True))
    if origin is dict:  # JSON has text for keys
        return {int(key): fitted(parts[1], each) for key, each in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if hasattr(kind, "__dataclass_fields__") and not isinstance(data, kind):
        hints = _hints(kind)
        return kind(**{name: _field(name, hints[name], each) for name, each in data.items()})
    if not isinstance(data, _PLAIN.get(kind, object)):
        raise TypeError(f"{reprlib.repr(data)} is no {kind.__name__}")
    return data


def _field(name: str, kind: Any, data: Any) -> Any:
    try:
        return fitted(kind, data)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Types of a dataclass's fields, by name."""
    hints = typing.get_type_hints(kind)
    return {each.name: hints[each.name] for each in dataclasses.fields(kind)}


def encode_timeline(timeline: Timeline) -> dict[str, Any]:
    """`timeline` as plain data; times as they are.

    One row per operation, one table of source lines that the rows refer to.
    """
    fields = [field.name for field in dataclasses.fields(Operation)]
    sites: dict[Site, int] = {}

    def number(site: Site) -> int:
        return sites.setdefault(site, len(sites))

    def cell(operation: Operation, name: str) -> Any:
        value = getattr(operation, name)
        if name == _CALLERS:
            return [number(site) for site in value]
        return number(value) if name in _SITES else value

    rows = [[cell(operation, name) for name in fields] for operation in timeline.operations]
    return {
        "fields": fields,
        "operations": rows,
        "sites": [dataclasses.astuple(site) for site in sites],
        "regions": [[each.name, each.start_s, each.end_s] for each in timeline.regions],
        "start_s": timeline.start_s,
        "end_s": timeline.end_s,
    }


def decode_timeline(data: Any) -> Timeline:
    """The timeline again."""
    sites = [Site(*row) for row in data["sites"]]
    operations = []
    for row in data["operations"]:
        cells = dict(zip(data["fields"], row, strict=True))
        cells |= {name: sites[cells[name]] for name in _SITES}
        cells[_CALLERS] = [sites[number] for number in cells[_CALLERS]]
        operations.append(fitted(Operation, cells))
    regions = [fitted(Region, dict(zip(_hints(Region), row))) for row in data["regions"]]
    start_s, end_s = (_field(name, float, data[name]) for name in ("start_s", "end_s"))
    return Timeline(operations, regions, start_s, end_s)
