"""Messages between the stages of a step, in one order that all ranks share.

    stage s --- F: y_i, rows of the microbatch ---> stage s + 1
    stage s <-- I: the gradient of y_i ------------ stage s + 1

The order is that in which messages would be sent if each F, I and W took the same time. Every rank
can compute it, since the schedule is data. Each rank posts its sends and receives in this order,
whichever of them it needs first. So a rank that waits for a message has posted all earlier ones,
and so has its peer. No ranks wait in a cycle, even on nccl, where each message of a rank waits for
the one that was posted before it.

- A receive is posted one message ahead for each peer, unless a send comes first in the order. So
  the next message travels while the current one is used.
- No rank waits for a send during the step: it could deadlock although the schedule does not. When a
  message arrives that the receiver computed after it had used the sent one, the buffer of the sent
  one is released. The end of the step waits for all other sends.
- Shapes: dim 0 is the microbatch's rows, which every rank knows. The other sizes and the dtype are
  sent once, before the first output over each boundary, in a header of 10 numbers.

Wire of a step: 2 m messages per boundary between ranks, each of one microbatch's output.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from labkit.comm import Group
from labkit.comm.member import Pending
from labkit.pipeline.op import Kind, Product, Schedule, consumer
from labkit.pipeline.simulation import Span, simulate

_HEADER_NUMEL = 10  # the dtype, the number of dims, and up to eight sizes
_DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.complex64, torch.complex128),
)
Layout = tuple[tuple[int, ...], torch.dtype]  # sizes but for the first, and the dtype


class _Message(NamedTuple):
    """A product on its way from one rank to another."""

    product: Product
    src: int
    dst: int
    made: int
    """The index, in the sender's row, of the operation that computes the product."""
    used: int
    """The index, in the receiver's row, of the operation that uses it."""


class StageMessages:
    """One rank's messages of a schedule: `begin` a step, `send`, `take`, `end` it."""

    def __init__(self, schedule: Schedule, group: Group) -> None:
        self._schedule, self._group = schedule, group
        self._messages = tuple(_messages(schedule, group.rank))
        self._layouts: dict[int, Layout] = {}  # by boundary: of the output of stage s
        self._sizes_of_input: tuple[int, ...] = ()
        self._rows: Sequence[int] = ()

    def begin(self, rows: Sequence[int], sizes_of_input: tuple[int, ...]) -> None:
        """Begin a step. rows: the number of rows of each microbatch.

        sizes_of_input: the input's sizes except dim 0. If they change, headers are sent again.
        Every rank passes the same values.
        """
        if sizes_of_input != self._sizes_of_input:
            self._layouts.clear()
        self._rows, self._sizes_of_input = rows, sizes_of_input
        self._is_first = not self._layouts
        self._to_post = deque(self._messages)
        self._posted: dict[Product, tuple[Pending[Tensor], _Message]] = {}
        self._sent: dict[int, deque[tuple[int, Pending[None]]]] = defaultdict(deque)  # by peer
        self._on_this_rank: dict[Product, Tensor] = {}
        self._post_ahead()

    def send(self, product: Product, x: Tensor) -> None:
        """Send a product to the stage that waits for it, without blocking."""
        there = consumer(product, self._schedule.num_stages)
        assert there is not None
        peer = self._schedule.rank_of[there]
        x = x.detach()
        if peer == self._group.rank:
            self._on_this_rank[product] = x
            return
        while self._to_post[0].product != product:
            self._post_receive()
        used = self._to_post.popleft().used
        kind, stage, _ = product
        if kind is Kind.F and stage not in self._layouts:
            self._layouts[stage] = (tuple(x.shape[1:]), x.dtype)
            header = _header(x, stage).to(self._group.device)
            with self._group.label(f"sizes of the outputs of stage {stage}"):
                self._sent[peer].append((-1, self._group.isend(header, peer)))
        with self._group.label(_label(product)):
            self._sent[peer].append((used, self._group.isend(x, peer)))
        self._post_ahead()

    def take(self, product: Product) -> Tensor:
        """Wait for a product of another stage, and return it."""
        _, stage, _ = product
        peer = self._schedule.rank_of[stage]
        if peer == self._group.rank:
            return self._on_this_rank.pop(product)
        while product not in self._posted:
            self._post_receive()
        pending, message = self._posted.pop(product)
        self._post_ahead()
        x = pending.wait()
        self._release_sent(peer, message.made)
        return x

    def end(self) -> None:
        """Wait until all sent messages have arrived."""
        for sent in self._sent.values():
            while sent:
                sent.popleft()[1].wait()

    def _post_ahead(self) -> None:
        """Post the receives that are next in the order, one for each peer."""
        if self._is_first:
            return  # a receive needs its header, and waiting for the header would block
        ahead = {message.src for _, message in self._posted.values()}
        while self._to_post and self._to_post[0].src not in {*ahead, self._group.rank}:
            ahead.add(self._to_post[0].src)
            self._post_receive()

    def _post_receive(self) -> None:
        message = self._to_post.popleft()
        sizes, dtype = self._layout(message.product, message.src)
        buffer = torch.empty(
            (self._rows[message.product[2]], *sizes), dtype=dtype, device=self._group.device
        )
        with self._group.label(_label(message.product)):
            self._posted[message.product] = (self._group.irecv(buffer, message.src), message)

    def _layout(self, product: Product, peer: int) -> Layout:
        kind, stage, _ = product
        boundary = stage if kind is Kind.F else stage - 1  # a gradient has the output's shape
        if boundary not in self._layouts:
            header = torch.empty(_HEADER_NUMEL, dtype=torch.int64, device=self._group.device)
            with self._group.label(f"sizes of the outputs of stage {boundary}"):
                number, num_dims, *sizes = self._group.recv(header, peer).tolist()
            self._layouts[boundary] = (tuple(sizes[:num_dims]), _DTYPES[number])
        return self._layouts[boundary]

    def _release_sent(self, peer: int, made: int) -> None:
        """Release messages that the peer has used: it has reached index `made` of its row."""
        sent = self._sent[peer]
        while sent and sent[0][0] <= made:
            sent.popleft()[1].wait()


def _messages(schedule: Schedule, rank: int) -> Iterator[_Message]:
    """Yield the messages that a rank sends or receives, in the order that all ranks share."""
    num_stages, rank_of = schedule.num_stages, schedule.rank_of
    made: dict[Product, int] = {}
    used: dict[Product, int] = {}
    for row in schedule.rows:
        for place, op in enumerate(row):
            made[op.product] = place
            if (need := op.needs(num_stages)) is not None:
                used[need] = place

    def turn(send: Span) -> tuple[float, int]:
        """Sort by time; of messages sent at the same time, a stage's receives come first."""
        return send.end, send.op.stage if send.op.kind is Kind.F else -send.op.stage

    for product, _, _ in sorted(simulate(schedule).sends, key=turn):
        there = consumer(product, num_stages)
        assert there is not None
        src, dst = rank_of[product[1]], rank_of[there]
        if rank in (src, dst):
            yield _Message(product, src, dst, made[product], used[product])


def _label(product: Product) -> str:
    kind, stage, microbatch = product
    what = "output" if kind is Kind.F else "gradient of the input"
    return f"{what} of stage {stage}, microbatch {microbatch}"


def _header(x: Tensor, stage: int) -> Tensor:
    if x.dtype not in _DTYPES or x.dim() > _HEADER_NUMEL - 1:
        raise TypeError(
            f"stage {stage} returned {x.dtype} of {x.dim()} dims; return floating-point numbers, "
            f"which gradients need, of at most {_HEADER_NUMEL - 1} dims"
        )
    header = torch.zeros(_HEADER_NUMEL, dtype=torch.int64)
    header[: x.dim() + 1] = torch.tensor([_DTYPES.index(x.dtype), x.dim() - 1, *x.shape[1:]])
    return header
