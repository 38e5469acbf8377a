"""Check a group's arguments before anything is sent, and make the tensor for the result.

The backend wants contiguous memory and works in place. So there are two tensors: `result`, a new
one or the caller's `out`, and the contiguous `buffer` that the backend writes, which often is the
same one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from labkit import arguments
from labkit.comm.member import Member

Tensor = torch.Tensor

_REDUCE_OPS = {
    "sum": dist.ReduceOp(dist.ReduceOp.SUM),
    "mean": dist.ReduceOp(dist.ReduceOp.SUM),  # gloo has no mean: the sum is divided afterwards
    "max": dist.ReduceOp(dist.ReduceOp.MAX),
    "min": dist.ReduceOp(dist.ReduceOp.MIN),
}
_REDUCIBLE = {torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16}
_REDUCIBLE |= {torch.float32, torch.float64, torch.complex64, torch.complex128}


def tensor(x: torch.Tensor, group: Member) -> torch.Tensor:
    """Return `x` without its autograd history: no gradient flows through these operations."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            f"expected a tensor, got {x!r:.60}; wrap numbers as torch.tensor({x!r:.60})"
        )
    if x.device.type != group.device.type:
        raise ValueError(
            f"the tensor is on {x.device}, but the ranks of this group exchange tensors on "
            f"{group.device}; move it with x.to(group.device)"
        )
    if x.layout is not torch.strided:
        raise TypeError(f"{x.layout} tensors cannot be sent as they are; pass x.to_dense()")
    return x.detach()


def target(buffer: torch.Tensor, group: Member) -> torch.Tensor:
    """Return `buffer` as something that can be written to, without its autograd history."""
    x = tensor(buffer, group)
    if x.is_conj() or x.is_neg():
        raise ValueError("a lazily conjugated tensor cannot be filled; pass x.resolve_conj()")
    strides = zip(x.stride(), x.shape, strict=True)
    if x.numel() and any(stride == 0 and size > 1 for stride, size in strides):
        raise ValueError("an expanded tensor cannot be filled, its elements share memory; clone it")
    return x


def member(rank: int, group: Member, role: str) -> None:
    """Check that `rank` is a number in the group."""
    is_number = isinstance(rank, int) and not isinstance(rank, bool)
    if not is_number or not 0 <= rank < group.size:
        raise ValueError(
            f"{role}={rank!r} is not a rank of this group of {group.size}; "
            f"give a number from 0 to {group.size - 1}"
        )


def peer(rank: int, group: Member, role: str) -> None:
    """Check that `rank` is another member of the group."""
    member(rank, group, role)
    if rank == group.rank:
        raise ValueError(
            f"{role}={rank} is this rank itself; a message to oneself would never arrive, "
            "use x.clone()"
        )


def summable(x: torch.Tensor) -> torch.Tensor:
    """Return `x`, if torch can add two such tensors here."""
    if x.dtype == torch.bool:
        raise TypeError("booleans have no sum; pass x.int(), and compare the result with 0")
    try:
        torch.add(x.new_empty(0), x.new_empty(0))
    except (RuntimeError, NotImplementedError):
        raise TypeError(
            f"torch cannot add {x.dtype} here; convert x, to torch.float32 for example"
        ) from None
    return x


def reduce_op(op: str, x: torch.Tensor) -> dist.ReduceOp:
    """Return the backend's operation for `op`, if it is defined on x's dtype."""
    if not isinstance(op, str) or op not in _REDUCE_OPS:
        raise ValueError(f"op={op!r} is not a reduction; choose one of {', '.join(_REDUCE_OPS)}")
    if x.dtype == torch.bool:
        raise TypeError(
            f"{op} is not defined on booleans; reduce x.int(), where max means any and min all"
        )
    if x.dtype not in _REDUCIBLE:
        raise TypeError(
            f"gloo cannot reduce {x.dtype}; convert x, to torch.int32 or torch.float32 for example"
        )
    if op == "mean" and not (x.is_floating_point() or x.is_complex()):
        raise TypeError(
            f"the mean of {x.dtype} tensors is not exact; reduce with op='sum' and divide yourself"
        )
    if op in ("max", "min") and x.is_complex():
        raise TypeError(f"complex numbers have no order, so no {op}; reduce x.abs()")
    return _REDUCE_OPS[op]


def rows_per_rank(x: torch.Tensor, group: Member, kind: str) -> int:
    """Return the rows of one of `size` equal blocks of dim 0."""
    if x.dim() == 0 or x.shape[0] % group.size:
        raise ValueError(
            f"{kind} over {group.size} ranks cannot cut a tensor of shape {tuple(x.shape)} into "
            f"equal blocks of dim 0; pad that dim to a multiple of {group.size}, or use "
            "labkit.collectives.ring_reduce_scatter, which takes any size"
        )
    return x.shape[0] // group.size


def both_splits(
    send: Sequence[int] | None, recv: Sequence[int] | None, x: torch.Tensor, group: Member
) -> tuple[list[int], list[int]]:
    """Return rows to and from each peer. ValueError if they differ in what this rank keeps."""
    to, source = _splits(send, x, group, "send_splits"), _splits(recv, x, group, "recv_splits")
    if to[group.rank] != source[group.rank]:
        raise ValueError(
            f"rank {group.rank} keeps for itself {to[group.rank]} rows by send_splits and "
            f"{source[group.rank]} by recv_splits; make them equal"
        )
    return to, source


def _splits(given: Sequence[int] | None, x: torch.Tensor, group: Member, role: str) -> list[int]:
    """Rows per peer, equal blocks of x where not given."""
    if x.dim() == 0:
        raise ValueError("all_to_all cuts rows, and a single number has none; pass x[None]")
    if given is None:
        if x.shape[0] % group.size:
            raise ValueError(
                f"all_to_all over {group.size} ranks cannot cut a tensor of shape "
                f"{tuple(x.shape)} into equal blocks; say how with send_splits and recv_splits"
            )
        return [x.shape[0] // group.size] * group.size
    # Not booleans: a comparison makes them by mistake, and True would be one row.
    is_sizes = isinstance(given, Sequence) and all(type(n) is int and n >= 0 for n in given)
    if not is_sizes or len(given) != group.size:
        raise ValueError(
            f"{role}={given!r} needs one number of rows, 0 or more, "
            f"for each of the {group.size} ranks"
        )
    if role == "send_splits" and sum(given) != x.shape[0]:
        raise ValueError(
            f"send_splits={list(given)} add up to {sum(given)} rows, but the tensor has "
            f"{x.shape[0]}"
        )
    return list(given)


def output(out: torch.Tensor, shape: torch.Size, x: torch.Tensor, group: Member) -> torch.Tensor:
    """Return `out`, if a result of `shape` and of x's dtype fits in it."""
    out = target(out, group)
    if out.shape != shape or out.dtype != x.dtype:
        raise ValueError(
            f"out has shape {tuple(out.shape)} and {out.dtype}, but the result has shape "
            f"{tuple(shape)} and {x.dtype}; pass torch.empty of those, or leave out= out"
        )
    return out


def blocks_to_scatter(
    x: torch.Tensor | None, out: torch.Tensor, root: int, group: Member
) -> list[torch.Tensor]:
    """Return x's equal blocks on the root, and nothing elsewhere."""
    if group.rank != root:
        if x is not None:
            raise ValueError(f"only the root, rank {root}, has something to scatter; pass x=None")
        return []
    if x is None:
        raise ValueError(f"rank {root} is the root of this scatter; pass the tensor to cut as x")
    x = tensor(x, group)
    rows = rows_per_rank(x, group, "scatter")
    if out.shape != (rows, *x.shape[1:]) or out.dtype != x.dtype:
        raise ValueError(
            f"out has shape {tuple(out.shape)} and {out.dtype}, but a block of x has shape "
            f"{(rows, *x.shape[1:])} and {x.dtype}"
        )
    return list(x.contiguous().tensor_split(group.size))


_GLOO_DTYPES = {1: torch.uint8, 2: torch.float16, 4: torch.int32, 8: torch.int64}


def filled(out: Tensor | None, x: Tensor, group: Member) -> Tensor:
    """Return a result that holds x already, for operations that start from it."""
    if out is None:
        return x.clone(memory_format=torch.contiguous_format)
    result = output(out, x.shape, x, group)
    is_x = result.data_ptr() == x.data_ptr() and result.stride() == x.stride()
    return result if is_x else result.copy_(x.clone())  # x may overlap with out: out=x.t()


def empty(out: Tensor | None, shape: torch.Size, x: Tensor, group: Member) -> Tensor:
    """Return a result of `shape` that holds nothing yet."""
    return x.new_empty(shape) if out is None else output(out, shape, x, group)


def row(out: Tensor | None, numel: int, x: Tensor, group: Member) -> Tensor:
    """Return a contiguous result (numel,), of which parts are written one by one."""
    whole = arguments.whole("numel", numel, "elements of all chunks together, from 0", least=0)
    result = empty(out, torch.Size([whole]), x, group)
    if not result.is_contiguous():
        raise ValueError(f"out has the stride {result.stride(0)}; pass a contiguous tensor")
    return result


def delivered(buffer: Tensor, result: Tensor, keep: Tensor | None = None) -> Tensor:
    """Return the result, once the work is complete. `keep`: what had to stay alive until now."""
    return buffer if buffer is result else result.copy_(buffer)


def reduced(
    buffer: Tensor, result: Tensor, op: str, group: Member, keep: Tensor | None = None
) -> Tensor:
    """Return the result of a reduction. The mean is divided here: gloo only has the sum."""
    if op == "mean":
        buffer.div_(group.size)
    return delivered(buffer, result, keep)


def real(x: Tensor) -> Tensor:
    """View a complex tensor as pairs of numbers, with the same sums. gloo has no complex ones."""
    return torch.view_as_real(x) if x.is_complex() else x


def movable(x: Tensor) -> Tensor:
    """View the same memory under a dtype that gloo knows, for operations that only move it."""
    if x.dtype == torch.complex128:
        return torch.view_as_real(x)
    return x.view(_GLOO_DTYPES[x.element_size()])


def with_rows(x: Tensor) -> Tensor:
    """View a single number as one row."""
    return x[None] if x.dim() == 0 else x
