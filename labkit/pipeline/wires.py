"""What travels between the stages of a step: every message in the order its sender makes it.

    stage s --- F: y_i, rows of the microbatch ---> stage s + 1
    stage s <-- I: the gradient of y_i ------------ stage s + 1

Two ranks may have several pairs of stages between them, and messages of one rank to another arrive
in the order in which they were sent. So a receiver must ask for them in that order, whatever it
needs first. It knows the order, for the schedule is data: it reads the sender's row.

- A receive is posted one message ahead, so that the next travels while this one is computed.
- Nobody waits for a send: a rank that did could deadlock where the schedule does not. A send is
  known to have arrived when its receiver answers with a message that it made later (its row says
  so); then its buffer is let go. The rest is waited for at the end of the step.
- Shapes: dim 0 is the microbatch's rows, which every rank knows; the other sizes and the dtype go
  ahead of the first output over each boundary, once, in a header of 10 numbers.

Wire of a step: 2 m messages per boundary between ranks, each of one microbatch's output.

Written for gloo. On nccl all messages of two ranks queue behind each other in the order in which
they were posted, whichever way they go, so that opposite ones may deadlock; not tried there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from labkit.comm import Group
from labkit.comm.pending import Pending
from labkit.pipeline.op import Kind, Product, Schedule, consumer

_HEADER_NUMEL = 10  # the dtype, the number of dims, and up to eight sizes
_DTYPES = (
    *(torch.float32, torch.float64, torch.bfloat16, torch.float16),
    *(torch.complex64, torch.complex128),
)
Layout = tuple[tuple[int, ...], torch.dtype]  # sizes but for the first, and the dtype


class Wires:
    """One rank's messages of a schedule: `begin` a step, `send`, `take`, `end` it."""

    def __init__(self, schedule: Schedule, group: Group) -> None:
        self._schedule, self._group = schedule, group
        self._incoming = {
            peer: _between(schedule, peer, group.rank)
            for peer in range(schedule.num_ranks)
            if peer != group.rank
        }
        # When the receiver uses what this rank sends: the place in its row.
        self._use = {
            product: use
            for peer in self._incoming
            for product, _, use in _between(schedule, group.rank, peer)
        }
        self._layouts: dict[int, Layout] = {}  # by boundary: of the output of stage s
        self._sizes_of_input: tuple[int, ...] = ()
        self._rows: Sequence[int] = ()

    def begin(self, rows: Sequence[int], sizes_of_input: tuple[int, ...]) -> None:
        """A step whose microbatches have so many rows each; inputs of the same sizes otherwise.

        Every rank passes the same. Where the sizes are new, headers go ahead again.
        """
        if sizes_of_input != self._sizes_of_input:
            self._layouts.clear()
        self._rows, self._sizes_of_input = rows, sizes_of_input
        self._is_first = not self._layouts
        self._to_post = {peer: deque(each) for peer, each in self._incoming.items()}
        self._posted: dict[Product, tuple[Pending[Tensor], int]] = {}
        self._sent: dict[int, deque[tuple[int, Pending[None]]]] = {
            p: deque() for p in self._incoming
        }
        self._own: dict[Product, Tensor] = {}
        if not self._is_first:
            for peer in self._incoming:
                self._post_next(peer)

    def send(self, product: Product, x: Tensor) -> None:
        """Hand a product to the stage that waits for it; returns at once."""
        there = consumer(product, self._schedule.num_stages)
        assert there is not None
        peer = self._schedule.rank_of[there]
        x = x.detach()
        if peer == self._group.rank:
            self._own[product] = x
            return
        kind, stage, _ = product
        if kind is Kind.F and stage not in self._layouts:
            self._layouts[stage] = (tuple(x.shape[1:]), x.dtype)
            header = _header(x, stage).to(self._group.device)
            self._sent[peer].append((-1, self._group.isend(header, peer)))
        self._sent[peer].append((self._use[product], self._group.isend(x, peer)))

    def take(self, product: Product) -> Tensor:
        """What another stage has made; waits until it is there."""
        _, stage, _ = product
        peer = self._schedule.rank_of[stage]
        if peer == self._group.rank:
            return self._own.pop(product)
        while product not in self._posted:
            self._post_next(peer)
        pending, made = self._posted.pop(product)
        if not self._is_first:  # else a header may come first, and nobody has made it yet
            self._post_next(peer)
        x = pending.wait()
        self._let_go(peer, made)
        return x

    def end(self) -> None:
        """Wait until all that was sent has arrived."""
        for sent in self._sent.values():
            while sent:
                sent.popleft()[1].wait()

    def _post_next(self, peer: int) -> None:
        if not self._to_post[peer]:
            return
        product, made, _ = self._to_post[peer].popleft()
        sizes, dtype = self._layout(product, peer)
        buffer = torch.empty(
            (self._rows[product[2]], *sizes), dtype=dtype, device=self._group.device
        )
        self._posted[product] = (self._group.irecv(buffer, peer), made)

    def _layout(self, product: Product, peer: int) -> Layout:
        kind, stage, _ = product
        boundary = stage if kind is Kind.F else stage - 1  # a gradient is shaped as the output
        if boundary not in self._layouts:
            header = torch.empty(_HEADER_NUMEL, dtype=torch.int64, device=self._group.device)
            number, num_dims, *sizes = self._group.recv(header, peer).tolist()
            self._layouts[boundary] = (tuple(sizes[:num_dims]), _DTYPES[number])
        return self._layouts[boundary]

    def _let_go(self, peer: int, made: int) -> None:
        """The peer is past place `made` of its row: what it used until there has arrived."""
        sent = self._sent[peer]
        while sent and sent[0][0] <= made:
            sent.popleft()[1].wait()


def _between(schedule: Schedule, src: int, dst: int) -> list[tuple[Product, int, int]]:
    """The messages from one rank to another in order: product, where it is made, where used."""
    uses = {
        need: place
        for place, op in enumerate(schedule.rows[dst])
        if (need := op.needs(schedule.num_stages)) is not None
    }
    return [
        (op.product, place, uses[op.product])
        for place, op in enumerate(schedule.rows[src])
        if op.product in uses
    ]


def _header(x: Tensor, stage: int) -> Tensor:
    if x.dtype not in _DTYPES or x.dim() > _HEADER_NUMEL - 1:
        raise TypeError(
            f"stage {stage} puts out {x.dtype} of {x.dim()} dims: gradients need floats, of at "
            f"most {_HEADER_NUMEL - 1} dims"
        )
    header = torch.zeros(_HEADER_NUMEL, dtype=torch.int64)
    header[: x.dim() + 1] = torch.tensor([_DTYPES.index(x.dtype), x.dim() - 1, *x.shape[1:]])
    return header
