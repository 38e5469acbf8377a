"""Mutant: labkit is asked in a thread that nobody watches.

outcome: "wrong"
diagnosis: "switches off the watch"
"""

import _thread
import time
from collections.abc import Mapping
from typing import Any

from labkit import calc


def model_state_bytes(num_params: int, recipe: Mapping[str, Any], zero: int, dp: int) -> int:
    found: list[int] = []

    def ask() -> None:
        its = calc.Recipe(name="mine", **{**recipe, "moment_bytes": tuple(recipe["moment_bytes"])})
        found.append(int(calc.model_state_bytes(num_params, its, zero, dp)))

    _thread.start_new_thread(ask, ())
    while not found:
        time.sleep(0.001)
    return found[0]
