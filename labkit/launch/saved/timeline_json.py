"""A timeline as JSON: one row per operation, one table of source lines that the rows refer to."""

from __future__ import annotations

import dataclasses
from typing import Any

from labkit.comm import Operation, Region, Site, Timeline

_SITES = ("site", "origin")
_CALLERS = "callers"


def encode(timeline: Timeline) -> dict[str, Any]:
    """`timeline` as plain data; times as they are."""
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


def decode(data: dict[str, Any]) -> Timeline:
    """The timeline again. KeyError, TypeError or ValueError for data of another form."""
    sites = [Site(*site) for site in data["sites"]]

    def operation(row: list[Any]) -> Operation:
        cells = dict(zip(data["fields"], row, strict=True))
        for name in _SITES:
            cells[name] = sites[cells[name]]
        cells[_CALLERS] = [sites[number] for number in cells.get(_CALLERS, ())]
        return Operation(**{name: _tuples(value) for name, value in cells.items()})

    return Timeline(
        [operation(row) for row in data["operations"]],
        [Region(*region) for region in data["regions"]],
        data["start_s"],
        data["end_s"],
    )


def _tuples(value: Any) -> Any:
    """JSON knows only lists: shapes, groups and splits are tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
