"""What a person typed, made plain before it is read as a number.

plain("≈ 1.5 × 10^9   bytes.")    "1.5e9 bytes"
plain("1,5 GB")                   "1.5 GB"; "1,500 GB" stays: there the comma groups digits
plain("12 percent")               "12%"
"""

import re

_LONGEST = 100  # characters: what is longer is no number, and matching it may take minutes
_HIGH = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_RAISED = re.compile(r"10([⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
_POWER = re.compile(r"(?<![\d.,_])10 ?(?:\^|\*\*) ?([+-]?\d+)")
_TIMES_POWER = re.compile(r"(?<=\d) ?[x×*·] ?1e(?=[+-]?\d)", re.I)
# A decimal comma has not three digits behind it, or a single 0 before it.
_DECIMAL_COMMA = re.compile(r"(?<![\d.,_])(0(?=,\d)|\d+(?=,(?!\d{3}(?!\d)))),(\d+)(?![\d.,])")


def plain(text: str) -> str:
    """The text as the parser knows it. TypeError for no text, ValueError for a long one."""
    if not isinstance(text, str):
        raise TypeError(f"{text!r:.60} is no text; write the number with its unit, '1.5 MB'")
    text = " ".join(text.split())
    if len(text) > _LONGEST:
        raise ValueError(
            f"{text[:20]!r}... has {len(text)} characters, and a number has at most {_LONGEST}; "
            "try 1e9 or 1.5 MB"
        )
    text = text.replace("µ", "u").replace("μ", "u").lstrip("≈~= ").removesuffix(".")
    text = re.sub(r" ?per ?cent$", "%", text, flags=re.I)
    text = re.sub(r" ?×$", " x", text)
    text = _RAISED.sub(lambda match: f"10^{match[1].translate(_HIGH)}", text)
    text = _TIMES_POWER.sub("e", _POWER.sub(r"1e\1", text))
    return _DECIMAL_COMMA.sub(r"\1.\2", text)
