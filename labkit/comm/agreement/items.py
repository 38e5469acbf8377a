"""What a call is for, by the program's own name for that tensor: `bias`, `model.0.weight`.

Or by two names, where it has two that are as good, `mine = weight`. One of these may go by the
rank's role, `mine` here and `other` there, so two ranks mean the same if they have one in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

_AND = " = "
_HALF = 4
NO_ITEM = bytes(2 * _HALF)


def said(names: Sequence[str]) -> str:
    """One or two names as an item."""
    return _AND.join(names)


def hashed_item(item: str | None) -> bytes:
    """8 bytes: 4 for each name, twice the same for one; zeros where nothing is known."""
    if item is None:
        return NO_ITEM
    names = item.split(_AND)
    return _hashed(names[0]) + _hashed(names[-1])


def differ(ours: bytes, theirs: bytes) -> bool:
    """Whether both are known, and have no name in common."""
    if ours == theirs or NO_ITEM in (ours, theirs):
        return False
    return not {ours[:_HALF], ours[_HALF:]} & {theirs[:_HALF], theirs[_HALF:]}


def texts_differ(ours: str | None, theirs: str | None) -> bool:
    """The same, of the items themselves."""
    return differ(hashed_item(ours), hashed_item(theirs))


def _hashed(name: str) -> bytes:
    return hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=_HALF).digest()
