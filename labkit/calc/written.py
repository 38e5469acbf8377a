"""What a person typed, made plain before it is read as a number.

plain("  1.5    MB ")    "1.5 MB"
"""

_LONGEST = 100  # characters: what is longer is no number, and matching it may take minutes


def plain(text: str) -> str:
    """The text with single blanks. TypeError for what is no text, ValueError for a long one."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r:.60} is no text; write the number with its unit, '1.5 MB'")
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        raise ValueError(
            f"{text[:20]!r}... has {len(text)} characters, and a number has at most {_LONGEST}; "
            "try 1e9 or 1.5 MB"
        )
    return text.replace("µ", "u").replace("μ", "u")
