"""A schedule as actions: each rank receives, computes and sends, and sends may block.

    1F1B, 2 ranks   rank 0   F0 >F0 F1 >F1 <B0 B0 ...         >F0  sends the output of F0
                    rank 1   <F0 F0 B0 >B0 <F1 F1 B1 ...      <B0  receives it
                                                              >F1+<B0  posted together

A Send or a Recv of its own blocks: the rank continues once the other rank has posted its side. The
messages of a Together are posted without blocking, and the rank waits for all of them at its end
(torch calls it batch_isend_irecv). Between two ranks, messages match in the order of posting.

`actions` returns the plain order, which deadlocks for 1F1B. `require_end` checks that rows of
actions finish, if a send ends only when it has been received:

    rank 0   ... F1 >F1 <B0 ...     both block in a send, and neither reaches its receive:
    rank 1   ... B0 >B0 <F1 ...     a deadlock, unless one of them receives first

No message is buffered: it is complete when both sides have posted it. gloo works like that, and
NCCL does for messages larger than its buffers. The verdict does not depend on the ranks' speed: a
message that one rank posts never prevents an action of another rank.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from labkit.pipeline.op import Kind, Op, Product, Schedule, consumer, marked


@dataclass(frozen=True, slots=True)
class Recv:
    """Receive a product from rank `src`."""

    product: Product
    src: int

    @property
    def peer(self) -> int:
        """The other rank."""
        return self.src


@dataclass(frozen=True, slots=True)
class Send:
    """Send a product to rank `dst`."""

    product: Product
    dst: int

    @property
    def peer(self) -> int:
        """The other rank."""
        return self.dst


@dataclass(frozen=True, slots=True)
class Together:
    """Messages that are posted in this order, all before any of them is waited for."""

    messages: tuple[Send | Recv, ...]


Action = Op | Recv | Send | Together
Row = Sequence[Action]


class MessageError(ValueError):
    """Rows of actions that do not perform the schedule, or that deadlock.

    The message ends with the rows, the wrong actions marked. rule: the broken rule, one of those
    that the function that raises it lists. marks: rank -> index in its row, or the row's length if
    something is missing.
    """

    def __init__(self, rule: str, reason: str, rows: Sequence[Row], marks: dict[int, int]) -> None:
        cells = [[shown(action) for action in row] for row in rows]
        super().__init__(f"{reason}\n{marked(cells, marks)}")
        self.rule, self.reason, self.marks = rule, reason, marks


def actions(schedule: Schedule) -> tuple[tuple[Action, ...], ...]:
    """Return by rank the plain order: receive what an operation needs, compute, send at once."""
    return tuple(tuple(_plain_order(schedule, rank)) for rank in range(schedule.num_ranks))


def _plain_order(schedule: Schedule, rank: int) -> Iterator[Action]:
    for op in schedule.rows[rank]:
        src, dst = source(op, schedule), destination(op, schedule)
        if src is not None:
            yield src
        yield op
        if dst is not None:
            yield dst


def source(op: Op, schedule: Schedule) -> Recv | None:
    """Return the message that an operation needs, or None if it needs none from another rank."""
    need, rank_of = op.needs(schedule.num_stages), schedule.rank_of
    if need is None or rank_of[need[1]] == rank_of[op.stage]:
        return None
    return Recv(need, rank_of[need[1]])


def destination(op: Op, schedule: Schedule) -> Send | None:
    """Return the message of an operation's product, or None if no other rank waits for it."""
    there, rank_of = consumer(op.product, schedule.num_stages), schedule.rank_of
    if there is None or rank_of[there] == rank_of[op.stage]:
        return None
    return Send(op.product, rank_of[there])


def messages_of(action: Action) -> tuple[Send | Recv, ...]:
    """Return the messages that an action posts, or none where it computes."""
    if isinstance(action, Together):
        return action.messages
    return () if isinstance(action, Op) else (action,)


def require_actions(schedule: Schedule, rows: Sequence[Row]) -> None:
    """Raise MessageError if rows do not perform the schedule, whether sends block or not.

    Rules, of which "stranger" is checked first. "stranger": a message is not one of the schedule's,
    or has another peer. "order": operations have another order. "need": an operation precedes the
    message that it needs. "early": a product is sent before it is computed. "twice": a message
    occurs twice. "dropped": a message is never sent.
    """
    for rank, row in enumerate(rows):
        _require_own_messages(schedule, rank, row, rows)
    for rank, row in enumerate(rows):
        _require_row(schedule, rank, row, rows)


def _messages_by_rank(schedule: Schedule, rank: int) -> set[Send | Recv]:
    """Return all messages that a rank sends or receives."""
    ends = [(source(op, schedule), destination(op, schedule)) for op in schedule.rows[rank]]
    return {message for pair in ends for message in pair if message is not None}


def _require_own_messages(schedule: Schedule, rank: int, row: Row, rows: Sequence[Row]) -> None:
    its = _messages_by_rank(schedule, rank)
    for index, action in enumerate(row):
        for message in messages_of(action):
            if message not in its:
                reason = f"rank {rank}: none of its messages is {shown(message)} with rank "
                raise MessageError("stranger", f"{reason}{message.peer}", rows, {rank: index})


def _require_row(schedule: Schedule, rank: int, row: Row, rows: Sequence[Row]) -> None:
    ops, at = schedule.rows[rank], 0
    done = set[Action | Product]()
    for index, action in enumerate(row):
        wrong: tuple[str, str] | None = None
        if isinstance(action, Op):
            wrong = _wrong_op(action, ops[at : at + 1], source(action, schedule), done)
            at += 1
            done.add(action.product)
        for message in messages_of(action):
            wrong = wrong or _wrong_message(message, done)
            done.add(message)
        if wrong is not None:
            raise MessageError(wrong[0], f"rank {rank}: {wrong[1]}", rows, {rank: index})
    if at < len(ops):
        raise MessageError("order", f"rank {rank} never performs {ops[at]}", rows, {rank: len(row)})
    for message in sorted(_messages_by_rank(schedule, rank) - done, key=lambda its: its.product):
        if isinstance(message, Send):
            reason = f"rank {rank} never sends {_name(message.product)}, and rank {message.dst} "
            raise MessageError("dropped", f"{reason}waits for it", rows, {rank: len(row)})


def _wrong_op(
    op: Op, expected: Sequence[Op], need: Recv | None, done: set[Action | Product]
) -> tuple[str, str] | None:
    if list(expected) != [op]:
        return "order", f"{op} where the schedule has {expected[0] if expected else 'its end'}"
    if need is not None and need not in done:
        return "need", f"{op} before {shown(need)}, the message of rank {need.src} that it needs"
    return None


def _wrong_message(message: Send | Recv, done: set[Action | Product]) -> tuple[str, str] | None:
    if message in done:
        return "twice", f"{shown(message)} again"
    if isinstance(message, Send) and message.product not in done:
        return "early", f"{shown(message)} before {_name(message.product)} is computed"
    return None


def shown(action: Action) -> str:
    """Write an action: `F0`, `>F0` for a send, `<B0` for a receive, `>F1+<B0` for both at once."""
    if isinstance(action, Op):
        return str(action)
    if isinstance(action, Together):
        return "+".join(map(shown, action.messages))
    return f"{'<' if isinstance(action, Recv) else '>'}{_name(action.product)}"


def _name(product: Product) -> str:
    kind, _, microbatch = product
    return f"{Kind.B if kind is Kind.I else kind}{microbatch}"


Link = tuple[int, int]  # from rank, to rank


class _PostedMessages:
    """The messages that have been posted: by link, the products of both ends, in order."""

    def __init__(self) -> None:
        self.sent: dict[Link, list[Product]] = defaultdict(list)
        self.received: dict[Link, list[Product]] = defaultdict(list)

    def post(self, rank: int, message: Send | Recv) -> tuple[Link, int]:
        """Post one end of a message; return its link, and its number there."""
        is_send = isinstance(message, Send)
        link = (rank, message.peer) if is_send else (message.peer, rank)
        end = (self.sent if is_send else self.received)[link]
        end.append(message.product)
        return link, len(end) - 1

    def is_complete(self, link: Link, number: int) -> bool:
        """Return whether both ends have been posted."""
        return number < min(len(self.sent[link]), len(self.received[link]))


def order_of_completion(rows: Sequence[Row]) -> Iterator[tuple[int, Action]]:
    """Yield (rank, action) as the actions end, every rank in its order.

    Raises MessageError when no rank can continue. Rules: "deadlock": ranks wait for each other in a
    cycle. "ended": a rank waits for one that has finished. "pair": the two ends of a message name
    different products. ValueError for a message to an unknown rank.
    """
    _require_ranks(rows)
    messages, position = _PostedMessages(), [0] * len(rows)
    # By rank: the messages of its current action; None before they are posted.
    posted_by: list[list[tuple[Link, int]] | None] = [None] * len(rows)
    ready = deque(range(len(rows)))
    while ready:
        rank = ready.popleft()
        while position[rank] < len(rows[rank]):
            action = rows[rank][position[rank]]
            posted = posted_by[rank]
            if posted is None:
                posted = [messages.post(rank, message) for message in messages_of(action)]
                posted_by[rank] = posted
                ready.extend({peer for link, _ in posted for peer in link} - {rank})
            _require_pairs(messages, posted, rows, position)
            if not all(messages.is_complete(*each) for each in posted):
                break
            yield rank, action
            position[rank] += 1
            posted_by[rank] = None
    if any(at < len(row) for at, row in zip(position, rows)):
        raise _blocked(rows, position, messages, posted_by)


def require_end(rows: Sequence[Row]) -> None:
    """Raise MessageError if the rows never finish: see order_of_completion."""
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
    messages: _PostedMessages,
    posted: list[tuple[Link, int]],
    rows: Sequence[Row],
    position: list[int],
) -> None:
    for link, number in posted:
        if not messages.is_complete(link, number):
            continue
        sent, received = messages.sent[link][number], messages.received[link][number]
        if sent != received:
            src, dst = link
            raise MessageError(
                "pair",
                f"message {number} from rank {src} to rank {dst} is {shown(Send(sent, dst))} for "
                f"the sender and {shown(Recv(received, src))} for the receiver: messages between "
                "two ranks match in order, so post them in one order on both",
                rows,
                {rank: position[rank] for rank in link},
            )


def _blocked(
    rows: Sequence[Row],
    position: list[int],
    messages: _PostedMessages,
    posted_by: list[list[tuple[Link, int]] | None],
) -> MessageError:
    """Name the ranks that wait for each other in a cycle, or for one that has ended."""
    waits: dict[int, int] = {}  # rank -> the rank that it waits for
    for rank, posted in enumerate(posted_by):
        for link, number in posted or ():
            if not messages.is_complete(link, number):
                waits.setdefault(rank, link[0] + link[1] - rank)

    def waiting(rank: int) -> str:
        return f"rank {rank} waits at {shown(rows[rank][position[rank]])} for rank {waits[rank]}"

    rank, path = min(waits), list[int]()
    while rank in waits and rank not in path:
        path.append(rank)
        rank = waits[rank]
    if rank not in waits:
        last = path[-1]
        reason = f"{waiting(last)}, which has finished"
        return MessageError("ended", reason, rows, {last: position[last]})
    cycle = path[path.index(rank) :]
    reason = f"a deadlock: {'; '.join(map(waiting, cycle))}"
    return MessageError("deadlock", reason, rows, {each: position[each] for each in cycle})
