"""What a run with a topology says afterwards, where its times are not those of the links."""

from __future__ import annotations

from functools import reduce

from labkit.comm import Operation, Pace, Topology
from labkit.comm.agreement.disagreement import WITHOUT_DATA
from labkit.comm.operation import SHARED_MEMORY
from labkit.comm.words import listed, verb
from labkit.launch.result import Run
from labkit.launch.told import tell

# Now and then a core is busy with something else, and a message has to wait for it.
_TOLERATED_SHARE = 0.05


def show(run: Run) -> None:
    """Print a line for each reason; nothing for a run without a topology."""
    for line in notes(run):
        tell(f"{line}.")


def notes(run: Run) -> list[str]:
    """The lines: messages that came late, and collectives that were not paced."""
    if run.topology is None:
        return []
    lines = (_late(reduce(Pace.plus, run.pace, Pace())), _unpaced(run, run.topology))
    return [line for line in lines if line]


def _late(pace: Pace) -> str:
    """More messages than by chance came later than the links allow."""
    if pace.num_late <= _TOLERATED_SHARE * pace.num_messages:
        return ""
    mean_ms = pace.late_s / pace.num_late * 1e3
    return (
        f"{pace.num_late} of {pace.num_messages} messages came later than the links of the "
        f"topology allow, by {mean_ms:.2g} ms on average: these times are this machine's, and not "
        "the links'. With slower links or larger messages it keeps the pace"
    )


def _unpaced(run: Run, topology: Topology) -> str:
    """Collectives moved data between ranks that have links, and no link has slowed them down."""
    operations = (operation for timeline in run.timeline for operation in timeline.operations)
    unpaced = dict.fromkeys(
        f"{each.kind} through shared memory" if each.medium == SHARED_MEMORY else each.kind
        for each in operations
        if each.is_collective and each.kind not in WITHOUT_DATA and _has_links(each, topology)
    )
    if not unpaced:
        return ""
    return (
        f"{listed(list(unpaced))} {verb(list(unpaced), 'was')} not paced to the links of the "
        "topology, and took the time that this machine takes. Only send and recv are paced, and "
        "with them labkit.collectives"
    )


def _has_links(operation: Operation, topology: Topology) -> bool:
    """Whether messages between the ranks of its group are paced, or some of them."""
    hosts = {topology.host_of(rank) for rank in operation.group}
    return len(hosts) > 1 or (topology.fast is not None and len(operation.group) > 1)
