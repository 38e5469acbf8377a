"""JSON from a file that anybody may have changed, as the dataclass whose annotations it must fit.

    fitted(Lateness, {"num_messages": "2"})
    Misfit: num_messages is '2', where a whole number belongs

All that is read of a saved run goes through here, so that behind it every field has the type that
its class says: an int is no bool, a float is finite, a list has as many items as its tuple, nothing
is missing and nothing is too many. Numbers end at 2**63, so that sums and differences of times are
finite too. An item that already is of its class, as put there by a reader of some denser form
(`decode_timeline`), stays as it is.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import reprlib
import types
import typing
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from labkit.comm import Operation, Region, Site, Timeline

_Fit = Callable[[Any], Any]
_LARGEST = 2**63
_SITES = ("site", "origin")
_CALLERS = "callers"


class Misfit(ValueError):
    """What does not fit, and where in the data it is."""

    def __init__(self, what: str, where: str = "") -> None:
        """what: "is 3, where text belongs"; where: `operations[2].kind`."""
        super().__init__(f"{where} {what}" if where else what)
        self.what, self.where = what, where

    def inside(self, outer: str) -> Misfit:
        """The same, seen from one level further out."""
        dot = "." if self.where and not self.where.startswith("[") else ""
        return Misfit(self.what, f"{outer}{dot}{self.where}")


def content(path: Path) -> bytes:
    """The bytes of a file. ValueError for what is none: a FIFO would keep its reader for ever."""
    if not path.is_file():
        raise ValueError(f"{path.name} is {'no file' if path.exists() else 'missing'}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path.name} is not readable: {error.strerror}") from error


def parsed(text: bytes) -> Any:
    """JSON as plain data. ValueError for anything else."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply for JSON that labkit writes") from None
    except ValueError as error:  # no JSON, no UTF-8, or a number of thousands of digits
        raise ValueError(f"it is cut short or damaged: {error}") from error


def fitted(kind: Any, data: Any) -> Any:
    """`data` as a `kind`: a dataclass, or anything that may stand in one's annotations."""
    return _fit_for(kind)(data)


def by_name(names: Sequence[str], row: Any) -> dict[str, Any]:
    """What stands in a row, which may lack its last items: those that must be there are missed."""
    if not isinstance(row, list) or len(row) > len(names):
        _refuse(row, f"a row of {len(names)} belongs")
    return dict(zip(names, row, strict=False))


def shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    return reprlib.repr(value)


def _refuse(data: Any, belongs: str) -> NoReturn:
    raise Misfit(f"is {shown(data)}, where {belongs}")


@functools.cache
def _fit_for(kind: Any) -> _Fit:
    """What makes a `kind` of plain data."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda data: data
    if origin in (types.UnionType, typing.Union):
        return _optional(parts)
    if origin is list:
        return _list(_fit_for(parts[0]))
    if origin is tuple:
        return _endless_tuple(_fit_for(parts[0])) if parts[-1] is ... else _tuple(parts)
    if origin is dict:
        return _by_number(_fit_for(parts[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    return _dataclass(kind) if dataclasses.is_dataclass(kind) else _PLAIN[kind]


def _int(data: Any) -> int:
    if type(data) is not int or not -_LARGEST < data < _LARGEST:
        _refuse(data, "a whole number belongs")
    return data


def _float(data: Any) -> float:
    if type(data) not in (int, float) or not -_LARGEST < data < _LARGEST:
        _refuse(data, "a finite number belongs")
    return data


def _instance_of(kind: type, belongs: str) -> _Fit:
    def fit(data: Any) -> Any:
        if type(data) is not kind:
            _refuse(data, f"{belongs} belongs")
        return data

    return fit


_PLAIN: dict[Any, _Fit] = {
    int: _int,
    float: _float,
    str: _instance_of(str, "text"),
    bool: _instance_of(bool, "true or false"),
    bytes: _instance_of(bytes, "bytes"),
}


def _optional(kinds: Sequence[Any]) -> _Fit:
    """Of `X | None`; of `X | Y | None`, dataclasses: an X where its own fields are there."""
    *special, plain = (kind for kind in kinds if kind is not type(None))
    fits = [(_required(kind), _fit_for(kind)) for kind in special] + [(set(), _fit_for(plain))]

    def fit(data: Any) -> Any:
        if data is None:
            return None
        fields = set(data) if isinstance(data, dict) else set()
        return next(fit for names, fit in fits if names <= fields)(data)

    return fit


def _list(item: _Fit) -> _Fit:
    def fit(data: Any) -> list[Any]:
        if not isinstance(data, (list, tuple)):
            _refuse(data, "a list belongs")
        return [_at(f"[{number}]", item, each) for number, each in enumerate(data)]

    return fit


def _endless_tuple(item: _Fit) -> _Fit:
    fit = _list(item)
    return lambda data: tuple(fit(data))


def _tuple(kinds: Sequence[Any]) -> _Fit:
    """Of `tuple[X, Y]`."""
    items = [_fit_for(kind) for kind in kinds]

    def fit(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, (list, tuple)) or len(data) != len(items):
            _refuse(data, f"a list of {len(items)} belongs")
        pairs = zip(items, data, strict=True)
        return tuple(_at(f"[{number}]", *pair) for number, pair in enumerate(pairs))

    return fit


def _by_number(item: _Fit) -> _Fit:
    """Of `dict[int, X]`: JSON has text for keys."""

    def fit(data: Any) -> dict[int, Any]:
        if not isinstance(data, dict):
            _refuse(data, "an object belongs")
        found = {}
        for key, each in data.items():
            if not key.isdecimal() or len(key) > len(str(_LARGEST)):
                _refuse(key, "the number of a rank belongs")
            found[int(key)] = _at(f"[{key}]", item, each)
        return found

    return fit


def _enum(kind: type[Enum]) -> _Fit:
    known = {member.value: member for member in kind}

    def fit(data: Any) -> Enum:
        if type(data) is not str or data not in known:
            _refuse(data, f"one of {', '.join(map(str, known))} belongs")
        return known[data]

    return fit


def _required(kind: Any) -> set[str]:
    """Names of the fields that have no default."""
    return {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }


def _dataclass(kind: Any) -> _Fit:
    hints = typing.get_type_hints(kind)
    fits = {field.name: _fit_for(hints[field.name]) for field in dataclasses.fields(kind)}
    required = _required(kind)

    def fit(data: Any) -> Any:
        if isinstance(data, kind):
            return data
        if not isinstance(data, dict):
            _refuse(data, "an object belongs")
        for name in required - data.keys():
            raise Misfit("is missing", name)
        for name in data.keys() - fits.keys():
            raise Misfit(f"holds {shown(name)}, which this labkit does not know")
        values = {name: _at(name, fits[name], each) for name, each in data.items()}
        try:
            return kind(**values)
        except (TypeError, ValueError) as error:  # a class that checks more than types
            raise Misfit(f"cannot be: {error}") from error

    return fit


def _at(where: str, fit: _Fit, data: Any) -> Any:
    try:
        return fit(data)
    except Misfit as error:
        raise error.inside(where) from None


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


@dataclasses.dataclass
class _Stored:
    """What `encode_timeline` makes."""

    fields: list[str]
    operations: list[list[Any]]
    sites: list[list[Any]]
    regions: list[list[Any]]
    start_s: float
    end_s: float


def decode_timeline(data: Any) -> Timeline:
    """The timeline again. Misfit, which says where, for data of another form."""
    stored: _Stored = fitted(_Stored, data)
    sites = _rows(Site, "sites", stored.sites)
    operations = []
    for number, row in enumerate(stored.operations):
        try:
            cells = by_name(stored.fields, row)
            for name in _SITES:
                cells[name] = _site(sites, cells.get(name))
            callers = fitted(list[int], cells.get(_CALLERS, []))
            cells[_CALLERS] = [_site(sites, each) for each in callers]
            operations.append(fitted(Operation, cells))
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
            found.append(fitted(kind, by_name(names, row)))
        except Misfit as error:
            raise error.inside(f"{table}[{number}]") from None
    return found


def _site(sites: list[Site], number: Any) -> Site:
    if type(number) is not int or not 0 <= number < len(sites):
        raise Misfit(f"refers to site {shown(number)}, and there are {len(sites)}")
    return sites[number]
