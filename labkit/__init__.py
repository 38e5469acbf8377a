"""labkit: learn distributed training by running it.

    import labkit

    def hello(world):
        return world.all_reduce(torch.tensor(world.rank))

    labkit.run(hello, world_size=4).values
"""

from labkit.comm import Group
from labkit.launch import Deadlock, RankError, Run, RunError, RunTimeout, run

__all__ = ["Deadlock", "Group", "RankError", "Run", "RunError", "RunTimeout", "run"]
