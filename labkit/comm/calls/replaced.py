"""A function of torch.distributed, replaced by a wrapper where that has taken it by name.

torch.distributed.broadcast, torch.distributed.distributed_c10d.broadcast
torch.distributed.tensor._collective_utils.broadcast    DTensor's own, if it is imported already
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch.distributed as dist


def replace(original: Callable[..., Any], wrapper: Callable[..., Any]) -> None:
    """Put `wrapper` in the place of `original`, under its name, wherever it is known so far."""
    name = original.__name__
    for path, module in list(sys.modules.items()):
        if path.startswith(dist.__name__) and vars(module).get(name) is original:
            setattr(module, name, wrapper)
