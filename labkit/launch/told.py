"""What the lab says of a run beside what the ranks print: it begins with [labkit]."""

import re
import textwrap

_COLUMNS = 96  # of a page of JupyterLab, which breaks longer lines in the middle of a word
_COMMAND = re.compile("`[^`]*`")


def tell(text: str) -> None:
    """Print it, in lines that fit on a page. What is to be copied, in backticks, stays whole."""
    whole = _COMMAND.sub(lambda command: command[0].replace(" ", "\0"), f"[labkit] {text}")
    lines = textwrap.wrap(whole, _COLUMNS, break_long_words=False, break_on_hyphens=False)
    print("\n".join(lines).replace("\0", " "), flush=True)
