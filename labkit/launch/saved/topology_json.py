"""A topology, and how one rank kept its pace, as plain data that JSON takes, and back."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from labkit.comm import Link, Pace, Topology


def encode(topology: Topology | None, pace: Pace | None) -> dict[str, Any]:
    """As entries of a record."""
    return {
        "topology": None if topology is None else dataclasses.asdict(topology),
        "pace": None if pace is None else dataclasses.asdict(pace),
    }


def decode(data: dict[str, Any]) -> dict[str, Any]:
    """Both again, from a record's entries. Records of runs without a topology may have neither.

    TypeError and ValueError for what is no topology, and for counts that are no numbers.
    """
    topology, pace = data.get("topology"), data.get("pace")
    return {
        "topology": None if topology is None else _topology(topology),
        "pace": None if pace is None else _pace(pace),
    }


def _topology(data: dict[str, Any]) -> Topology:
    links = {name: None if data[name] is None else Link(**data[name]) for name in ("fast", "slow")}
    return Topology(**{**data, **links})


def _pace(data: dict[str, Any]) -> Pace:
    if not all(type(value) in (int, float) and math.isfinite(value) for value in data.values()):
        raise ValueError(f"pace is {data!r}, where finite numbers belong")
    return Pace(**data)
