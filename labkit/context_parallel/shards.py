"""Queries, keys and values of one rank: checked before anything is sent."""

import torch
from torch import Tensor

from labkit import arguments
from labkit.comm import Group, tensor_checks
from labkit.context_parallel.token_placement import Cut, Placement, cut_of


def checked_cut(
    q_BHtK: Tensor,
    k_BGtK: Tensor,
    v_BGtK: Tensor,
    group: Group,
    causal: bool,
    placement: Placement,
    num_tokens: int | None,
) -> Cut:
    """How the sequence is cut whose shard these are.

    TypeError: no tensors, no real floating-point numbers, different dtypes, a `causal` that is
    neither True nor False, no placement. ValueError: shapes that do not fit each other, G heads of
    keys that do not divide H of queries, a shard of another length than the placement's.
    """
    tensors = {"q": q_BHtK, "k": k_BGtK, "v": v_BGtK}
    for name, x in tensors.items():
        tensor_checks.tensor(x, group)
        if x.dim() != 4:
            raise ValueError(
                f"{name} has {x.dim()} dims, not 4: (batch, heads, time, head features); "
                "try x.unflatten(2, (num_heads, -1)).transpose(1, 2)"
            )
        if not x.is_floating_point() or x.dtype != q_BHtK.dtype:
            raise TypeError(
                f"q, k, v are {', '.join(str(each.dtype) for each in tensors.values())}; give one "
                "floating-point dtype, such as torch.bfloat16, to all"
            )
    if not isinstance(causal, bool):
        raise TypeError(f"causal={causal!r:.60}: give True or False")
    _require_fitting_shapes(q_BHtK, k_BGtK, v_BGtK)
    return cut_of(group, q_BHtK.shape[2], placement, num_tokens)


def _require_fitting_shapes(q_BHtK: Tensor, k_BGtK: Tensor, v_BGtK: Tensor) -> None:
    B, H, t, K = q_BHtK.shape
    G = k_BGtK.shape[1]
    if k_BGtK.shape != v_BGtK.shape or k_BGtK.shape != (B, G, t, K):
        raise ValueError(
            f"q {tuple(q_BHtK.shape)}, k {tuple(k_BGtK.shape)}, v {tuple(v_BGtK.shape)}: k and v "
            "must be equal in shape, and differ from q in the number of heads only"
        )
    if not H or not K or G < 1 or H % G:
        choices = ", ".join(map(str, arguments.divisors(H))) if H else "heads of queries first"
        raise ValueError(
            f"{G} heads of keys do not divide {H} heads of queries of {K} features into groups; "
            f"give {choices}"
        )


def wide(dtype: torch.dtype) -> torch.dtype:
    """What sums are taken in: float32 for 16-bit numbers, else the dtype itself."""
    return torch.promote_types(dtype, torch.float32)
