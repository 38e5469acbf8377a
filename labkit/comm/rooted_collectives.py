"""The backend's collectives with a root: one rank has or gets what the others share."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from labkit.comm import buffers, checks, wire_bytes
from labkit.comm.member import Member

Tensor = torch.Tensor
Reply = Any  # a Tensor; with wait=False, a Pending of it


class RootedCollectives(Member):
    """Operations with a root; what moves where is drawn in group.py."""

    def broadcast(
        self, x: Tensor, root: int = 0, *, out: Tensor | None = None, wait: bool = True
    ) -> Reply:
        """Every rank gets the root's `x`; elsewhere `x` only says shape and dtype.

        Wire: a binomial tree. The root sends x ceil(log2(n)) times, the leaves nothing.
        """
        x = checks.tensor(x, self)
        checks.member(root, self, "root")
        options = c10d.BroadcastOptions()
        options.rootRank = root
        options.asyncOp = not wait
        result = buffers.filled(out, x, self)
        buffer = result.contiguous()
        wire = wire_bytes.tree_broadcast(x.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.broadcast([buffers.movable(buffer)], options),
            lambda: buffers.delivered(buffer, result),
            self._post("broadcast", x, wire, wait, peer=root),
            wait,
        )

    def gather(self, x: Tensor, root: int = 0, *, wait: bool = True) -> Reply:
        """The root gets every rank's `x`, joined along dim 0 in rank order; the others get None.

        x: (k, ...), the same shape on every rank; a single number counts as (1,).
        Wire: every rank but the root sends x.
        """
        source = buffers.with_rows(checks.tensor(x, self)).contiguous()
        checks.member(root, self, "root")
        options = c10d.GatherOptions()
        options.rootRank = root
        options.asyncOp = not wait
        parts = [torch.empty_like(source) for _ in range(self.size)] if self.rank == root else []
        wire = wire_bytes.to_root(x.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.gather(
                [[buffers.movable(part) for part in parts]] if parts else [],
                [buffers.movable(source)],
                options,
            ),
            lambda: torch.cat(parts) if parts else None,
            self._post("gather", source, wire, wait, peer=root),
            wait,
        )

    def scatter(self, x: Tensor | None, out: Tensor, root: int = 0, *, wait: bool = True) -> Reply:
        """The root's `x` is cut into n equal blocks of dim 0; rank r gets the r-th, in `out`.

        x: (n*k, ...) on the root, None elsewhere. out: (k, ...) on every rank.
        Wire: the root sends every block but its own.
        """
        out = checks.target(out, self)
        checks.member(root, self, "root")
        blocks = checks.blocks_to_scatter(x, out, root, self)
        options = c10d.ScatterOptions()
        options.rootRank = root
        options.asyncOp = not wait
        buffer = out.contiguous()
        wire = wire_bytes.from_root(out.nbytes, self.size, self.rank, root)
        return self._started(
            lambda: self._process_group.scatter(
                [buffers.movable(buffer)],
                [[buffers.movable(block) for block in blocks]] if blocks else [],
                options,
            ),
            lambda: buffers.delivered(buffer, out),
            self._post("scatter", out, wire, wait, peer=root),
            wait,
        )
