"""What torchrun shows of a rank that failed: the file that it names to each, as torch's @record
writes it.

Of all files torchrun calls the one with the earliest time the root cause, and takes those without
one for failed when it looked. So a rank that failed by itself says when; one that was ended for it
leaves none.
"""

import json
import os
import time
from pathlib import Path


def leave(message: str, traceback: str = "", seconds_ago: float = 0.0) -> None:
    """Write this process's file, where torchrun has named one.

    traceback: what torchrun prints below the rank; the message where it is empty.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    # In whole seconds, and one less: ranks that are ended within the same second come after it.
    at_s = int(time.time() - seconds_ago) - 1
    extra = {"py_callstack": traceback or message, "timestamp": str(at_s)}
    Path(path).write_text(json.dumps({"message": {"message": message, "extraInfo": extra}}))
