"""A number with its unit, formula and parts; numbers of different units do not add.

states = calc.model_state_bytes(7.5e9, "zero_paper", zero=1, dp=64)
states                       31.4 GB
states.to("GiB")             29.25...
states["moments"]            937 MB, one part of it
states + calc.amount("2 GiB")    bytes and bytes: 33.6 GB
states + 5                   TypeError: 5 of what?
print(states.explain())      formula, substitution, convention, source, and the parts

Inside, bytes are bytes, time is seconds: prefixes are for people, and GB is never GiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import total_ordering
from numbers import Real

from labkit import arguments
from labkit.calc.units import UNITS_OF, exact_text, parse_quantity, text


@total_ordering
@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A value in base units, what it is made of, and where the formula comes from."""

    value: float
    dimension: str
    """bytes, seconds, FLOP, parameters, share (of 1), or "" for a plain count."""
    name: str = ""
    formula: str = ""
    """In letters, as a paper writes it."""
    substitution: str = ""
    """The formula with this call's numbers."""
    convention: str = ""
    """Definition of the count, where tools differ."""
    source: str = ""
    parts: Mapping[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.dimension not in UNITS_OF:
            raise ValueError(
                f"dimension={self.dimension!r}: give one of {', '.join(map(repr, UNITS_OF))}"
            )

    def to(self, unit: str) -> float:
        """Return the number in a unit of this dimension, `to("GiB")`. ValueError for any other
        unit."""
        units = UNITS_OF[self.dimension]
        if unit not in units:
            kind = self.dimension or "a plain number"
            raise ValueError(
                f"{self.name or 'this'} is {kind}, which has no unit {unit!r}; it can be read in "
                f"{', '.join(name or 'no unit' for name in units)}"
            )
        return self.value / units[unit]

    def __getitem__(self, part: str) -> Result:
        """Return one part, by name. KeyError lists the parts."""
        if part not in self.parts:
            raise KeyError(f"{part!r}; the parts are {', '.join(self.parts) or 'none'}")
        return self.parts[part]

    def explain(self) -> str:
        """Explain the result: formula, substitution, convention and source, then the parts."""
        exact = exact_text(self.value, self.dimension)
        lines = [f"{self.name} = {self}" + (f" ({exact})" if exact != str(self) else "")]
        for title in ("formula", "substitution", "convention", "source"):
            if said := getattr(self, title):
                lines.append(f"    {title:<14}{said}")
        if self.parts:
            width = max(map(len, self.parts))
            lines.append("    parts")
            for name, part in self.parts.items():
                how = part.substitution or part.formula
                exact = exact_text(part.value, part.dimension)
                lines.append(f"      {name:<{width}}  {exact:>26}  {how}".rstrip())
        return "\n".join(lines)

    def __str__(self) -> str:
        """Write it for a reader: 31.4 GB, 6.74B parameters, 30.4%."""
        return text(self.value, self.dimension)

    __repr__ = __str__

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        """Compare with a result of the same dimension, or a number in base units."""
        if isinstance(other, Result):
            return self.dimension == other.dimension and self.value == other.value
        return self.value == other

    def __lt__(self, other: Result | float) -> bool:
        return self.value < self._same(other, "compared with")

    def __add__(self, other: Result | float) -> Result:
        return self._sum(self._like(other, "added to"))

    def __radd__(self, other: float) -> Result:
        """sum() begins with 0."""
        return self if other == 0 else self + other

    def __sub__(self, other: Result | float) -> Result:
        other = self._like(other, "subtracted from")
        return Result(self.value - other.value, self.dimension, f"{self.name} - {other.name}")

    def __mul__(self, factor: object) -> Result:
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            return NotImplemented
        return Result(self.value * factor, self.dimension, f"{factor:g} x {self.name}")

    __rmul__ = __mul__

    def __truediv__(self, other: Result | float) -> Result | float:
        """Divide by a result of the same dimension, for a plain ratio, or by a number."""
        if isinstance(other, Result):
            return other._same(self, "divided by") / other.value
        return Result(self.value / other, self.dimension, f"{self.name} / {other:g}")

    def _sum(self, other: Result) -> Result:
        first, second = self.name or "first", other.name or "second"
        return Result(
            self.value + other.value,
            self.dimension,
            f"{self.name} + {other.name}",
            substitution=f"{self} + {other}",
            parts={first: self, second if second != first else f"{second} again": other},
        )

    def _like(self, other: object, verb: str) -> Result:
        """Return the other as a result of this dimension; a number if both are plain."""
        value = self._same(other, verb, numbers=False)
        return other if isinstance(other, Result) else Result(value, "", f"{value:g}")

    def _same(self, other: object, verb: str, *, numbers: bool = True) -> float:
        """Return the other's value. TypeError unless it is of this dimension."""
        if isinstance(other, Result):
            if other.dimension == self.dimension:
                return other.value
            raise TypeError(
                f"{other} ({other.dimension or 'a plain number'}) cannot be {verb} {self} "
                f"({self.dimension or 'a plain number'})"
            )
        is_number = isinstance(other, Real) and not isinstance(other, bool)
        if is_number and (numbers or not self.dimension):
            return float(other)  # type: ignore[arg-type]
        raise TypeError(f"{other!r} cannot be {verb} {self}: of what? Try amount('5 GB')")


def amount(text: str) -> Result:
    """Read a quantity with its unit: amount("80 GiB"), amount("3.1 h"), amount("50 GB/s").

    Without a unit it is a plain number. ValueError for an unknown unit, and TypeError for anything
    but text, see `parse_quantity`.
    """
    quantity = parse_quantity(text)
    return Result(quantity.value, quantity.dimension, text.strip())


def number_of(given: float | Result, name: str, *dimensions: str) -> float:
    """Return the number given to a formula, or the value of a Result of the right dimension.

    dimensions: allowed for a Result, beside none. TypeError for anything else, naming it.
    """
    if not isinstance(given, Result):
        arguments.number(name, given, "give a finite one, such as 4 or 1e9")
    elif given.dimension not in (*dimensions, ""):
        raise TypeError(f"{name}={given}: give a number of {dimensions[0]}")
    return float(given)


def total(name: str, parts: Mapping[str, Result], **how: str) -> Result:
    """Return the sum of parts of one dimension. `how`: formula, convention, source."""
    first, *others = parts.values()
    value = first.value
    for part in others:
        value += first._same(part, "added to")
    how.setdefault("substitution", " + ".join(parts))
    return Result(value, first.dimension, name, parts=dict(parts), **how)


def total_bytes(name: str, parts: Mapping[str, tuple[float, str]], **how: str) -> Result:
    """Return the sum of parts in bytes, each with its substitution: {"embedding": (8.0, "2 * 4
    B")}."""
    results = {
        part: Result(nbytes, "bytes", part, substitution=made)
        for part, (nbytes, made) in parts.items()
    }
    return total(name, results, **how)
