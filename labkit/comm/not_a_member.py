"""What a rank gets from a split that it takes no part in."""

from __future__ import annotations

from typing import Any, NoReturn


class NotAMember:
    """Stands for a group that this rank does not belong to. It is false: `if group: ...`.

    Whatever is called on it raises RuntimeError. (torch.distributed itself lets such a call return
    with the tensor unchanged, and a warning.) But close(), and a `with`, which does nothing here.
    """

    def __init__(self, rank: int, parent: str) -> None:
        """`rank`: global; `parent`: the group that was split."""
        self._rank, self._parent = rank, parent

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"NotAMember(rank {self._rank}, of a split of {self._parent})"

    def close(self) -> None:
        """There is nothing to close."""

    def __enter__(self) -> NotAMember:
        return self

    def __exit__(self, *error: object) -> None:
        """There is nothing to close."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse(name)

    def _refuse(self, name: str) -> NoReturn:
        raise RuntimeError(
            f"rank {self._rank} uses {name} of a group that it does not belong to: in the split of "
            f"{self._parent} it gave color=None, so it is in none of the groups. Guard the call "
            "with `if group:`, or give the rank a color"
        )
