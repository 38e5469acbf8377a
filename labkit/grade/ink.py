"""Colours of words in HTML, with enough contrast in light themes and in dark ones."""


def ink(colour: str) -> str:
    """A CSS colour for text: `colour`, mixed with that of the text around it.

    So it is darker than `colour` on a light page, and lighter on a dark one.
    """
    return f"color-mix(in srgb, {colour} 55%, currentColor)"
