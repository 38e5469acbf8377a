"""A rank forked from the process that torchrun started, which stays beside it.

That process has imported torch and labkit and computes nothing, as the fork server in engine.py.
So a rank that hangs in C++, or dies, leaves somebody who can say so.
"""

import multiprocessing

from labkit.launch.driver.engine import RankProcess
from labkit.launch.ranks.rank import RankSpec, rank_main


def fork_rank(spec: RankSpec) -> RankProcess:
    """Fork one rank from this process; it begins at `rank_main`."""
    context = multiprocessing.get_context("fork")
    control, its_control = context.Pipe()
    output, its_output = context.Pipe(duplex=False)
    its_lifeline, lifeline = context.Pipe(duplex=False)

    def begin() -> None:
        for connection in (control, output, lifeline):
            connection.close()  # a lifeline ends when nobody else holds the other end
        rank_main(spec, its_control, its_output, its_lifeline)

    process = context.Process(target=begin, name=f"rank {spec.rank}")
    process.start()
    for connection in (its_control, its_output, its_lifeline):
        connection.close()
    return RankProcess(spec.rank, process, control, output, lifeline)  # type: ignore[arg-type]
