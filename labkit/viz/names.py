"""What is drawn under names: {name: what it is}."""

from collections.abc import Mapping


def require_names(argument: str, given: object, form: str) -> None:
    """TypeError for what is no mapping, and for a name that is no text; `form`: of what it is."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{argument}={given!r:.60}: give {form}")
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"{argument} has the name {name!r:.60}, which is no text; give {form}")
