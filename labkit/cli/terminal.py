"""The terminal that commands print to."""

from rich.console import Console


def console(*, stderr: bool = False) -> Console:
    """Made anew for each use: sys.stdout may be another one by then."""
    return Console(stderr=stderr, highlight=False)
