"""What formulas are asked with: counts of ranks, ranks, sizes, links.

Each check names the value, the reason and what would be right: TypeError for no number (a boolean
is none), ValueError for one that cannot be. Whole numbers may come as floats, 8e6 for example.
"""

from numbers import Real

_MOST_RANKS = 1_000_000
_LARGEST = 1e30  # of any amount: beyond, a product soon is no number any more
_OF_RANKS = ("world_size", "n", "dp", "tp", "cp")


def check_number(value: object, name: str) -> None:
    """Raises TypeError unless `value` is a number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name}={shown(value)}: give a number, such as 4 or 1e9")


def check_ranks(world_size: float, name: str = "world_size") -> int:
    """`world_size` as an int. Raises unless it is a count of ranks."""
    check_number(world_size, name)
    if not is_whole(world_size) or not 1 <= world_size <= _MOST_RANKS:
        how = "a group of ranks has" if name in _OF_RANKS else "give"
        raise ValueError(
            f"{name}={shown(world_size)}: {how} a whole number from 1 to {_MOST_RANKS:,}"
        )
    return int(world_size)


def check_rank(rank: float, world_size: float, name: str = "rank") -> int:
    """`rank` as an int. Raises unless it is one of 0 to world_size - 1."""
    world_size = check_ranks(world_size)
    check_number(rank, name)
    if not is_whole(rank) or not 0 <= rank < world_size:
        raise ValueError(
            f"{name} {shown(rank)} is not in a group of {world_size}: 0 to {world_size - 1}"
        )
    return int(rank)


def check_not_negative(amount: float, name: str) -> None:
    """Raises for an amount below 0, infinite, or not a number, naming it."""
    check_number(amount, name)
    if not 0 <= amount < _LARGEST:
        raise ValueError(
            f"{name}={shown(amount)}: an amount is finite and cannot be below 0; 0 is allowed"
        )


def check_above_zero(amount: float, name: str, reason: str) -> None:
    """Raises for an amount that is not finite and above 0, naming it and giving the reason."""
    check_number(amount, name)
    if not 0 < amount < _LARGEST:
        raise ValueError(f"{name}={shown(amount)}: {reason}")


def check_flag(flag: object, name: str) -> None:
    """Raises TypeError unless it is on or off: "no" would count as on."""
    if not isinstance(flag, bool):
        raise TypeError(f"{name}={shown(flag)}: give True or False")


def is_whole(number: float) -> bool:
    """Whether a number counts things."""
    return abs(number) < _LARGEST and number == int(number)


def check_numel(numel: float) -> int:
    """`numel` as an int. Raises unless it is a number of elements."""
    check_not_negative(numel, "numel")
    if not is_whole(numel):
        raise ValueError(f"numel={numel}: elements come whole; give a whole number, 0 or more")
    return int(numel)


def check_itemsize(itemsize: float, name: str = "itemsize") -> int:
    """`itemsize` as an int. Raises unless it is a number of bytes per element."""
    check_number(itemsize, name)
    if not is_whole(itemsize) or itemsize < 1:
        raise ValueError(
            f"{name}={shown(itemsize)} bytes per element: they come whole, from 1; float32 has "
            "4, bfloat16 has 2"
        )
    return int(itemsize)


def divisors_text(number: int) -> str:
    """What cuts it into equal parts, as in "1, 2 or 4": the end of a refusal."""
    *others, last = [str(each) for each in range(1, number + 1) if number % each == 0]
    return f"{', '.join(others)} or {last}" if others else last


def shown(value: object) -> str:
    """The value, but not for ever."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
