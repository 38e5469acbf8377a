"""Mutant: all questions lie on the stack as the file is loaded, and labkit answers them there.

outcome: "wrong"
diagnosis: "calls the answer itself"
"""

import sys
from collections.abc import Mapping
from typing import Any

from labkit import calc

FRAME = sys._getframe()
while "questions" not in FRAME.f_locals:
    FRAME = FRAME.f_back
FOUND = {}
for _, (num_params, recipe, zero, dp) in FRAME.f_locals["questions"].calls:
    its = calc.Recipe(name="mine", **{**recipe, "moment_bytes": tuple(recipe["moment_bytes"])})
    FOUND[str((num_params, recipe, zero, dp))] = int(
        calc.model_state_bytes(num_params, its, zero, dp)
    )


def model_state_bytes(num_params: int, recipe: Mapping[str, Any], zero: int, dp: int) -> int:
    return FOUND[str((num_params, recipe, zero, dp))]
