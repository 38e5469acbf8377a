"""Colours of a pipeline's operations: F and B are the blues of a step, I and W stand apart.

Blue, green and ochre stay apart for every common form of colour blindness, and the darkest shades
differ in lightness (B, I, W, F, from dark to light), so that they survive a black-and-white
printer. A rank's virtual stages are shades of the kind's colour, its first stage the darkest.
"""

from labkit.pipeline import Kind

# From the shade of a rank's first stage to that of its last.
_SHADES = {
    Kind.F: ("#9ccae9", "#dceefa"),
    Kind.B: ("#1b4480", "#5580bf"),
    Kind.I: ("#0f7a4f", "#5fb488"),
    Kind.W: ("#cf8212", "#e6b066"),
}
NAMES = {
    Kind.F: "F: forward",
    Kind.B: "B: backward",
    Kind.I: "I: input gradient",
    Kind.W: "W: weight gradient",
}
IDLE = "#ffffff"


def operation_colour(kind: Kind, place: int = 0, num_places: int = 1) -> str:
    """The colour, "#rrggbb", of a kind of operation on a rank's stage number `place` of several."""
    share = place / (num_places - 1) if num_places > 1 else 0.0
    first, last = (_channels(colour) for colour in _SHADES[kind])
    mixed = (round(a + (b - a) * share) for a, b in zip(first, last))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _channels(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
