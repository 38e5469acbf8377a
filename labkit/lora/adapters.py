"""Adapters of a whole model: add them, choose them for the rows of a batch, merge them.

    add_adapter(model, "poems", rank=8, alpha=16, targets=("query", "value"))
    add_adapter(model, "code", rank=4)
    use_adapters(model, ["poems", "code", None])     a batch of three rows
    merge(model, "poems")                            W + s B A takes the place of W, for all rows

`blocks.0.attention.query` then holds `base.weight`, `adapters.poems.a` and `adapters.poems.b`.

Merged, an adapter costs nothing in forward. The sum is rounded to the dtype of W, and so is the
difference that `unmerge` forms: in 16 bits the result is not exactly W.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from labkit import arguments
from labkit.lora.layer import Adapter, LoRALinear, Routing
from labkit.lora.sharded import ShardedLoRALinear
from labkit.serving.quantized import QuantizedLinear
from labkit.tensor_parallel import ColumnLinear, RowLinear

_WRAPPERS: dict[type[nn.Module], type[LoRALinear]] = {
    nn.Linear: LoRALinear,
    QuantizedLinear: LoRALinear,
    ColumnLinear: ShardedLoRALinear,
    RowLinear: ShardedLoRALinear,
}


def add_adapter(
    model: nn.Module,
    name: str,
    rank: int,
    *,
    alpha: float | None = None,
    targets: Iterable[str] = ("query", "value"),
    seed: int = 0,
) -> None:
    """Add an adapter beside every linear layer named in `targets`, and use it for all rows.

    rank: r. alpha: s = alpha / r; None: s = 1. seed: of A, uniform within 1/sqrt(I); the same on
    every rank and for every way in which the layer is sharded. The first adapter freezes all
    parameters of the model. Make the optimizer and wrap the model afterwards.
    ValueError for a name that is taken or has a dot, for targets that the model does not have, and
    for a rank or an alpha that is not above 0.
    """
    r = arguments.whole("rank", rank, "1 or more")
    scale = 1.0 if alpha is None else arguments.number("alpha", alpha, "above 0", above=0) / r
    if not name or "." in name or name in adapter_names(model):
        raise ValueError(
            f"name={name!r}: an adapter needs a name of its own without a dot; taken are "
            f"{', '.join(adapter_names(model)) or 'none'}"
        )
    _adapt(model, set(targets))
    for path, layer in lora_layers(model).items():
        if path.rpartition(".")[2] not in set(targets):
            continue
        num_out, num_in = layer.weight_shape
        like = next(iter([*layer.base.parameters(), *layer.base.buffers()]))
        dtype = like.dtype if like.is_floating_point() else torch.float32
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{path}.{name}".encode()))
        uniform = torch.rand(r, num_in, generator=generator, dtype=torch.float64) * 2 - 1
        a_rI = (uniform / math.sqrt(num_in)).to(like.device, dtype)
        layer.add(name, a_rI, a_rI.new_zeros(num_out, r), scale)
    use_adapters(model, name)


def _adapt(model: nn.Module, targets: set[str]) -> None:
    """Wrap the target layers that are not wrapped yet, and freeze what is not an adapter."""
    found = {path.rpartition(".")[2] for path in lora_layers(model)}
    wrapped: list[tuple[nn.Module, str, LoRALinear]] = []
    linear_names = set(found)
    for module in model.modules():
        for child_name, child in module.named_children():
            if type(child) in _WRAPPERS and not isinstance(module, LoRALinear):
                linear_names.add(child_name)
                if child_name in targets:
                    wrapped.append((module, child_name, _WRAPPERS[type(child)](child)))
    if missing := targets - linear_names or (not targets and {"none"}):
        raise ValueError(
            f"targets {', '.join(sorted(missing))}: the model has no such linear layer; give some "
            f"of {', '.join(sorted(linear_names))}"
        )
    if not found:
        model.requires_grad_(False)
    for module, child_name, layer in wrapped:
        setattr(module, child_name, layer)


def lora_layers(model: nn.Module) -> dict[str, LoRALinear]:
    """Return the layers that have adapters, by name in the model."""
    return {name: each for name, each in model.named_modules() if isinstance(each, LoRALinear)}


def adapter_names(model: nn.Module) -> list[str]:
    """Return the names of all adapters in the model, in the order in which they were added."""
    return list(dict.fromkeys(n for each in lora_layers(model).values() for n in each.adapters))


def adapter_parameters(model: nn.Module, name: str) -> dict[str, nn.Parameter]:
    """Return the parameters of one adapter by name: for its optimizer, and to save it alone.

    ValueError for an unknown adapter.
    """
    _require_known(model, [name])
    inner = f".adapters.{name}."
    return {path: p for path, p in model.named_parameters() if inner in path}


def use_adapters(model: nn.Module, rows: str | Sequence[str | None] | None) -> None:
    """Choose the adapter of each row of the batches to come.

    rows: a name for all rows; a list with a name, or None for the base alone, for each row; None:
    the base alone for all rows. ValueError for an unknown adapter. RuntimeError if an adapter is
    merged, which changes all rows.
    """
    named = [rows] if isinstance(rows, str) else [name for name in rows or [] if name is not None]
    _require_known(model, named)
    layers = lora_layers(model)
    merged = {each.merged for each in layers.values()} - {None}
    if merged and not (isinstance(rows, str) and rows in merged):
        raise RuntimeError(f"{merged.pop()!r} is merged into the weights of all rows; call unmerge")
    for layer in layers.values():
        chosen = rows if not isinstance(rows, str) or rows in layer.adapters else None
        layer.routing = None if chosen is None else Routing(chosen, layer.adapters)


@torch.no_grad()
def merge(model: nn.Module, name: str) -> None:
    """Add an adapter to the weights: W + s B A, rounded to the weight's dtype.

    ValueError for an unknown adapter. RuntimeError if one is merged already. TypeError for a
    quantised base, whose codes have no room for the change.
    """
    _require_known(model, [name])
    layers = [each for each in lora_layers(model).values() if name in each.adapters]
    for layer in layers:
        if layer.merged is not None:
            raise RuntimeError(f"{layer.merged!r} is merged already; call unmerge first")
        if isinstance(layer.base, QuantizedLinear):
            raise TypeError(
                "the base is quantised, and rounding W + s B A to its codes would lose the change; "
                "merge into the weights that were quantised"
            )
    for layer in layers:
        _weight_of(layer).add_(_adapter_of(layer, name).product())
        layer.merged = name


@torch.no_grad()
def unmerge(model: nn.Module) -> None:
    """Subtract the merged adapter. Two roundings remain: keep a copy of W where bits count."""
    for layer in lora_layers(model).values():
        if layer.merged is not None:
            _weight_of(layer).sub_(_adapter_of(layer, layer.merged).product())
            layer.merged = None


def _weight_of(layer: LoRALinear) -> Tensor:
    weight = layer.base.weight
    assert isinstance(weight, Tensor)
    return weight


def _adapter_of(layer: LoRALinear, name: str) -> Adapter:
    adapter = layer.adapters[name]
    assert isinstance(adapter, Adapter)
    return adapter


def _require_known(model: nn.Module, names: Iterable[str]) -> None:
    known = adapter_names(model)
    if unknown := set(names) - set(known):
        raise ValueError(
            f"{', '.join(map(repr, sorted(unknown)))}: not an adapter of this model; it has "
            f"{', '.join(known) or 'none'}"
        )
