"""From labkit/course/SUBJECT/claims.toml to claims.

What cannot be one is refused, with its key, a reason and a fix.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from labkit.grade.catalog import load_subjects
from labkit.interview.court.claim import VERDICTS, Claim, Evidence, Exhibit

_KINDS_OF_EVIDENCE = ("proof", "source", "pending")


class ClaimsError(ValueError):
    """A file that holds no claims, or not only claims."""


@cache
def load_claims() -> Mapping[str, Claim]:
    """Every claim of the package by its key, in the course's order."""
    claims: dict[str, Claim] = {}
    for subject in load_subjects().values():
        path = subject.folder / "claims.toml"
        if path.is_file():
            claims |= read_claims(path.read_text(encoding="utf-8"))
    return claims


def read_claims(text: str) -> Mapping[str, Claim]:
    """The claims of a TOML text by key. ClaimsError for whatever is no claim."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClaimsError(
            f"the TOML cannot be read: {error}; mind quotes, commas, and that each {{ ... }} stays "
            "on one line"
        ) from None
    entries = data.get("claims")
    if set(data) != {"claims"} or not isinstance(entries, list):
        raise ClaimsError("write the claims as [[claims]] tables, and nothing beside them")
    claims: dict[str, Claim] = {}
    for number, entry in enumerate(entries, start=1):
        claim = _claim(entry, number)
        if claim.key in claims:
            raise ClaimsError(f"{claim.key}: there are two of this key; give each its own")
        claims[claim.key] = claim
    return claims


def _claim(entry: dict[str, Any], number: int) -> Claim:
    known = entry.get("key")
    name = known if isinstance(known, str) and known else f"claim {number}"
    given = dict(entry)
    for key, kind in (("evidence", Evidence), ("exhibits", Exhibit)):
        given[key] = [_made(kind, item, f"{name}, {key}") for item in given.get(key, ())]
    claim: Claim = _made(Claim, given, name)
    _check(claim)
    return claim


def _made(kind: Any, entry: dict[str, Any], where: str) -> Any:
    """A `kind` of an entry's fields; unknown and missing ones are refused."""
    allowed = {each.name: each for each in fields(kind)}
    if unknown := sorted(set(entry) - set(allowed)):
        raise ClaimsError(f"{where}: unknown {', '.join(unknown)}; there are {', '.join(allowed)}")
    needed = [name for name, each in allowed.items() if each.default is MISSING]
    if missing := [name for name in needed if name not in entry]:
        raise ClaimsError(f"{where}: there is no {', '.join(missing)}; write it")
    return kind(**{
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    })  # fmt: skip


def _check(claim: Claim) -> None:
    """Raises ClaimsError for fields that do not go together."""

    def fail(reason: str) -> ClaimsError:
        return ClaimsError(f"{claim.key}: {reason}")

    if claim.verdict not in VERDICTS:
        raise fail(f"verdict = {claim.verdict!r}; give one of {', '.join(VERDICTS)}")
    if not claim.exhibits:
        raise fail("there is no exhibit; a claim without a number cannot be tried")
    for item in claim.evidence:
        if sum(bool(getattr(item, kind)) for kind in _KINDS_OF_EVIDENCE) != 1:
            raise fail(f"the evidence of {item.says!r} needs one of proof, source and pending")
    for exhibit in claim.exhibits:
        if bool(exhibit.proof) == bool(exhibit.published):
            raise fail(f"the exhibit {exhibit.shows!r} needs a proof, or else a published figure")
