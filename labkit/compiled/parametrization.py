"""SimpleFSDP: a parameter is a shard, and reading it gathers it.

    module.weight      a property, made by torch.nn.utils.parametrize
      |
      |  original        shard (k,)     this rank's part, the only thing an optimizer sees
      |  to the wire     (k,)           in compute_dtype, or as codes of 8 bits
      |  all-gather      (n*k,)
      |  from the wire   (n*k,)         in compute_dtype
      v  cut and shaped  (out, in)      without the padding
    y = x @ module.weight.T

Backward runs the same steps in reverse: pad the gradient, reduce-scatter it, divide by n. There are
no hooks, no streams and no state. Each step is an operation that a compiler traces, so forward and
backward with all collectives become two graphs (compile.py), and a pass may change them
(graph_pass.py). Without a compiler the same module is right and slow: each read gathers one
parameter and waits for it, and a parameter that is saved for backward stays whole until then.

Layout: each parameter is cut by itself, flat, into n equal shards of k = ceil(numel / n) numbers,
padded with zeros. zero/ and FSDP1 lay the parameters of a unit side by side instead; fully_shard
cuts each parameter by rows. A tied parameter is one shard, and each module that reads it gathers.
Wire: for each read of a parameter an all-gather, one more in backward if the compiler gathers
again, and a reduce-scatter of the gradient: 3 (n-1)/n of the padded bytes.

Gathers of 8 bits ("wire"): each rank rounds its shard to codes of one byte with one scale, packs
both into one message, and multiplies after the gather. The shards, gradients and the optimizer keep
all their bits, so the rounding does not add up over steps.

    bfloat16   2 k bytes           float8   k + 4 bytes, 4 significant bits (e4m3)
                                   int8     k + 4 bytes, 8 bits, equal steps of max/127

Paper: Zhang et al., "SimpleFSDP", arXiv:2411.00284. Gathers of 8 bits: Wang et al., "ZeRO++",
arXiv:2306.10209, which rounds blocks of a shard, each with a scale, and reduces gradients of 4 bits
as well; torchao's float8 all-gather has one scale for a whole parameter, after an all-reduce of the
largest value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils import parametrize

from labkit.comm import Group
from labkit.comm.group import chosen
from labkit.data_parallel.replica import mark_sharded, require_equal_layouts, require_unwrapped
from labkit.zero.flat import is_divided_before, require_floating

WIRES = {"whole": None, "float8": torch.float8_e4m3fn, "int8": torch.int8}
"""Dtypes on the wire, by name; "whole" is the one that the module computes in."""
_SCALE_BYTES = 4  # a float32 behind the codes of a shard


def simple_fsdp(
    module: nn.Module,
    group: Group | None = None,
    compute_dtype: torch.dtype | None = None,
    *,
    wire: str = "whole",
) -> nn.Module:
    """Replace each parameter of `module` by its shard, and return the module.

    The parameters keep their identity. Their names change: `up.parametrizations.weight.original`.
    compute_dtype: of gathered parameters and reduced gradients; None: that of the parameter. wire:
    "whole", or "float8" or "int8" to gather codes of 8 bits, of parameters with two dims or more.

    All ranks start with the values of rank 0. TypeError for anything but an unwrapped module of
    floating-point parameters. ValueError for another wire, and on a rank whose module differs.
    """
    require_unwrapped(module)
    require_floating("compute_dtype", compute_dtype)
    if wire not in WIRES:
        raise ValueError(f"wire={wire!r:.60}: give one of {', '.join(WIRES)}")
    group = chosen(group)
    require_equal_layouts(module, group)
    for tensor in (*module.parameters(), *module.buffers()):
        group.broadcast(tensor.data, root=0, out=tensor.data)
    reads = [
        (owner, name, parameter, parameter.shape)
        for owner in module.modules()
        for name, parameter in owner.named_parameters(recurse=False)
    ]
    for owner, name, parameter, shape in reads:
        require_floating(name, parameter.dtype)
        codes = WIRES[wire] if len(shape) > 1 else None
        gather = Gather(shape, group, compute_dtype or parameter.dtype, codes)
        # unsafe: torch's check of shapes would gather on each rank before all have their shards.
        parametrize.register_parametrization(owner, name, gather, unsafe=True)
    mark_sharded(parameter for _, _, parameter, _ in reads)
    return module


def full_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the whole parameters by their names before sharding. Every rank calls it.

    A tied parameter has each of its names. Wire: as one forward pass. Codes of 8 bits are rounded,
    as the module sees them.
    """
    found = {}
    with torch.no_grad():
        for prefix, owner in list(module.named_modules()):
            for name in getattr(owner, "parametrizations", {}):
                found[f"{prefix}.{name}".lstrip(".")] = getattr(owner, name).clone()
    return found


class Gather(nn.Module):
    """shard (k,) -> parameter: the parametrisation of one parameter."""

    def __init__(
        self, shape: torch.Size, group: Group, dtype: torch.dtype, codes: torch.dtype | None
    ) -> None:
        super().__init__()
        self.shape, self.numel, self.dtype, self.codes = shape, shape.numel(), dtype, codes
        self.rank, self.num_ranks, self.group_name = group.rank, group.size, group.torch_name

    def forward(self, shard_k: Tensor) -> Tensor:
        """Return the parameter, gathered from all ranks."""
        full = _AllGather.apply(shard_k, self.num_ranks, self.group_name, self.dtype, self.codes)
        return full[: self.numel].view(self.shape)

    def right_inverse(self, parameter: Tensor) -> Tensor:
        """Return this rank's shard (k,) of a whole parameter: torch calls it once, at the start.

        A tied parameter is a shard already when its second module asks.
        """
        if parameter.shape != self.shape:
            return parameter
        flat = pad(parameter.detach().flatten(), (0, -self.numel % self.num_ranks))
        return flat.view(self.num_ranks, -1)[self.rank].clone()


class _AllGather(torch.autograd.Function):
    """shard (k,) -> full (n*k,); backward averages: gradient (n*k,) -> (k,)."""

    @staticmethod
    def forward(
        ctx: Any,
        shard_k: Tensor,
        num_ranks: int,
        group_name: str,
        dtype: torch.dtype,
        codes: torch.dtype | None,
    ) -> Tensor:
        ctx.num_ranks, ctx.group_name, ctx.dtype = num_ranks, group_name, shard_k.dtype
        if codes is None:
            return _gathered(shard_k.to(dtype), num_ranks, group_name)
        message = _gathered(to_wire(shard_k, codes), num_ranks, group_name)
        return from_wire(message.view(num_ranks, -1), codes, dtype)

    @staticmethod
    def backward(ctx: Any, full_gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        n, collective = ctx.num_ranks, torch.ops._c10d_functional
        is_first = is_divided_before(full_gradient.dtype)
        sent = full_gradient.contiguous() / n if is_first else full_gradient.contiguous()
        total = collective.reduce_scatter_tensor(sent, "sum", n, ctx.group_name)
        mean = collective.wait_tensor(total).to(ctx.dtype)
        return mean if is_first else mean / n, None, None, None, None


def _gathered(own: Tensor, num_ranks: int, group_name: str) -> Tensor:
    collective = torch.ops._c10d_functional
    started = collective.all_gather_into_tensor(own.contiguous(), num_ranks, group_name)
    return collective.wait_tensor(started)


def to_wire(shard_k: Tensor, codes: torch.dtype) -> Tensor:
    """Return a message (k + 4,) uint8: a code of one byte for each number, and a float32 scale."""
    most = 127.0 if codes == torch.int8 else torch.finfo(codes).max
    numbers = shard_k.float()
    scale = (numbers.abs().amax() / most).clamp_min(torch.finfo(torch.float32).tiny)
    scaled = numbers / scale
    rounded = (scaled.round() if codes == torch.int8 else scaled).to(codes)
    return torch.cat([rounded.view(torch.uint8), scale.reshape(1).view(torch.uint8)])


def from_wire(messages_nm: Tensor, codes: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Return the numbers (n*k,) that n messages of k + 4 bytes stand for."""
    codes_nk, scale_n4 = messages_nm.split([messages_nm.shape[1] - _SCALE_BYTES, _SCALE_BYTES], 1)
    # A copy: floats cannot be viewed at a place that is no multiple of 4.
    scale_n1 = scale_n4.flatten().clone().view(torch.float32)[:, None]
    numbers = codes_nk.contiguous().view(codes).float() * scale_n1
    return numbers.to(dtype).flatten()
