"""labkit in a terminal: the engine of the notebooks, with rich output.

labkit check ring_all_reduce     exit status 0 after a pass, 1 otherwise, 2 for a call that is wrong
labkit puzzle "two ranks" rows.txt    the same
labkit plan --model llama3-70b --cluster h100 --gpus 512    1 where no layout fits
labkit doctor                    exit status 0 where runs work, 1 where something prevents them
"""

from labkit.cli.commands import app, main

__all__ = ["app", "main"]
