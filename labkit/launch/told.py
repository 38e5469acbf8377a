"""What the lab says of a run beside what the ranks print: it begins with [labkit]."""

import textwrap

_COLUMNS = 96  # of a page of JupyterLab, which breaks longer lines in the middle of a word


def tell(text: str) -> None:
    """Print it, in lines that fit on a page."""
    lines = textwrap.wrap(
        f"[labkit] {text}", _COLUMNS, break_long_words=False, break_on_hyphens=False
    )
    print("\n".join(lines), flush=True)
