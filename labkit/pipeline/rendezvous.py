"""Do rows of actions come to their end, if a send ends only when it has been received?

    rank 0   ... F1 >F1 <B0 ...     both are in a send, and neither comes to its receive:
    rank 1   ... B0 >B0 <F1 ...     a deadlock; it ends if one of them receives first

Nothing is kept on the way: a message is complete when both sides have posted it. gloo works like
that, and NCCL for messages beyond its small buffers. The verdict does not depend on the ranks'
pace: what one rank posts never takes from another what it could have done.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from labkit.pipeline.messages import Action, MessageError, Recv, Row, Send, messages_of, shown
from labkit.pipeline.op import Product

Link = tuple[int, int]  # from rank, to rank


class _Wires:
    """What has been posted so far: by link, the products of both ends, in order."""

    def __init__(self) -> None:
        self.sent: dict[Link, list[Product]] = defaultdict(list)
        self.received: dict[Link, list[Product]] = defaultdict(list)

    def post(self, rank: int, message: Send | Recv) -> tuple[Link, int]:
        """One end of a message; its link, and its number there."""
        is_send = isinstance(message, Send)
        link = (rank, message.peer) if is_send else (message.peer, rank)
        end = (self.sent if is_send else self.received)[link]
        end.append(message.product)
        return link, len(end) - 1

    def is_through(self, link: Link, number: int) -> bool:
        """Whether both ends have been posted."""
        return number < min(len(self.sent[link]), len(self.received[link]))


def order_of_completion(rows: Sequence[Row]) -> Iterator[tuple[int, Action]]:
    """(rank, action) as they end, every rank in its order.

    Raises MessageError when no rank can go on. rule "deadlock": ranks wait for each other in a
    cycle. "ended": a rank waits for one that has come to its end. "pair": the two ends of a
    message mean different products. ValueError: a message to a rank that there is not.
    """
    _require_ranks(rows)
    wires, position = _Wires(), [0] * len(rows)
    under_way: list[list[tuple[Link, int]] | None] = [None] * len(rows)  # of the current action
    ready = deque(range(len(rows)))
    while ready:
        rank = ready.popleft()
        while position[rank] < len(rows[rank]):
            action = rows[rank][position[rank]]
            posted = under_way[rank]
            if posted is None:
                posted = [wires.post(rank, message) for message in messages_of(action)]
                under_way[rank] = posted
                ready.extend({peer for link, _ in posted for peer in link} - {rank})
            _require_pairs(wires, posted, rows, position)
            if not all(wires.is_through(*each) for each in posted):
                break
            yield rank, action
            position[rank] += 1
            under_way[rank] = None
    if any(at < len(row) for at, row in zip(position, rows)):
        raise _blocked(rows, position, wires, under_way)


def require_end(rows: Sequence[Row]) -> None:
    """Raises MessageError where the rows do not come to their end: see order_of_completion."""
    for _ in order_of_completion(rows):
        pass


def _require_ranks(rows: Sequence[Row]) -> None:
    for rank, row in enumerate(rows):
        for action in row:
            for message in messages_of(action):
                if message.peer == rank or not 0 <= message.peer < len(rows):
                    raise ValueError(
                        f"rank {rank} has {shown(message)} with rank {message.peer}; its peers are "
                        f"the others of 0 to {len(rows) - 1}"
                    )


def _require_pairs(
    wires: _Wires, posted: list[tuple[Link, int]], rows: Sequence[Row], position: list[int]
) -> None:
    for link, number in posted:
        if not wires.is_through(link, number):
            continue
        sent, received = wires.sent[link][number], wires.received[link][number]
        if sent != received:
            src, dst = link
            raise MessageError(
                "pair",
                f"message {number} from rank {src} to rank {dst} is {shown(Send(sent, dst))} for "
                f"the one and {shown(Recv(received, src))} for the other: they keep their order",
                rows,
                {rank: position[rank] for rank in link},
            )


def _blocked(
    rows: Sequence[Row],
    position: list[int],
    wires: _Wires,
    under_way: list[list[tuple[Link, int]] | None],
) -> MessageError:
    """Names the ranks that wait for each other in a cycle, or for one that has ended."""
    waits: dict[int, int] = {}  # rank -> the rank that it waits for
    for rank, posted in enumerate(under_way):
        for link, number in posted or ():
            if not wires.is_through(link, number):
                waits.setdefault(rank, link[0] + link[1] - rank)

    def told(rank: int) -> str:
        return f"rank {rank} waits at {shown(rows[rank][position[rank]])} for rank {waits[rank]}"

    rank, path = min(waits), list[int]()
    while rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank]
    if rank not in waits:
        last = path[-1]
        reason = f"{told(last)}, which has finished"
        return MessageError("ended", reason, rows, {last: position[last]})
    cycle = path[path.index(rank) :]
    reason = f"a deadlock: {'; '.join(map(told, cycle))}"
    return MessageError("deadlock", reason, rows, {each: position[each] for each in cycle})
