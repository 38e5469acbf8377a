"""A timeline as JSON: one row per operation, one table of source lines that the rows refer to."""

from __future__ import annotations

import dataclasses
from typing import Any

from labkit.comm import Operation, Region, Site, Timeline
from labkit.launch.saved import typed_json
from labkit.launch.saved.typed_json import Misfit

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


@dataclasses.dataclass
class _Stored:
    """What `encode` makes."""

    fields: list[str]
    operations: list[list[Any]]
    sites: list[list[Any]]
    regions: list[list[Any]]
    start_s: float
    end_s: float


def decode(data: Any) -> Timeline:
    """The timeline again. Misfit, which says where, for data of another form."""
    stored: _Stored = typed_json.fitted(_Stored, data)
    sites = _rows(Site, "sites", stored.sites)
    operations = []
    for number, row in enumerate(stored.operations):
        try:
            cells = typed_json.by_name(stored.fields, row)
            for name in _SITES:
                cells[name] = _site(sites, cells.get(name))
            callers = typed_json.fitted(list[int], cells.get(_CALLERS, []))
            cells[_CALLERS] = [_site(sites, each) for each in callers]
            operations.append(typed_json.fitted(Operation, cells))
        except Misfit as error:
            raise error.inside(f"operations[{number}]") from None
    regions = _rows(Region, "regions", stored.regions)
    return Timeline(operations, regions, stored.start_s, stored.end_s)


def _rows(kind: Any, table: str, rows: list[list[Any]]) -> list[Any]:
    """A table without a line of names: its columns are the fields of `kind`."""
    names = [field.name for field in dataclasses.fields(kind)]
    found = []
    for number, row in enumerate(rows):
        try:
            found.append(typed_json.fitted(kind, typed_json.by_name(names, row)))
        except Misfit as error:
            raise error.inside(f"{table}[{number}]") from None
    return found


def _site(sites: list[Site], number: Any) -> Site:
    if type(number) is not int or not 0 <= number < len(sites):
        raise Misfit(f"refers to site {typed_json.shown(number)}, and there are {len(sites)}")
    return sites[number]
