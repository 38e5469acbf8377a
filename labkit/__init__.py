"""labkit: learn distributed training by running it.

    import torch, labkit

    def hello(world):
        return world.all_reduce(torch.tensor(world.rank))

    labkit.run(hello, world_size=4).values      # [tensor(6), tensor(6), tensor(6), tensor(6)]

Needs only torch and cloudpickle. Pictures, graders and widgets load when they are first used.
"""

import sys
from typing import TYPE_CHECKING, Any

from labkit.lazy import lazy

if TYPE_CHECKING:
    from labkit import comm, launch, measure
    from labkit.comm import FatTree, Group, Link, Topology, replay
    from labkit.grade.engine import check
    from labkit.grade.hints import hint, reset, solution
    from labkit.launch import (
        Deadlock,
        Mismatch,
        RankError,
        Run,
        RunError,
        RunTimeout,
        Session,
        attempt,
        run,
        save_payload,
        warm_up,
    )

# Names load when used: torch takes two seconds, and in a terminal the fork server imports it.
__getattr__, __dir__, __all__ = lazy(__name__)

_ipython = sys.modules.get("IPython")
if "ipykernel" in sys.modules and _ipython is not None and _ipython.get_ipython() is not None:
    # In a notebook a run will follow: the fork server starts while the reader reads on.
    from labkit.launch import warm_up

    warm_up()


def load_ipython_extension(shell: Any) -> None:
    """Register the magics `%%ranks` and `%ranks`: IPython calls this for `%load_ext labkit`."""
    from labkit.notebook import magic

    magic.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """End the magics' session: IPython calls this for `%unload_ext labkit`."""
    from labkit.notebook import magic

    magic.unload()
