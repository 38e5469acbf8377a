"""The sizes of a GPT, for model.py and for formulas about it.

Letters in brackets, such as K, are those of the legend in model.py.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from labkit import arguments


@dataclass(frozen=True, kw_only=True)
class GPTConfig:
    """The sizes of a GPT.

    ValueError: a size under 1, heads that do not divide `hidden`, key-value heads that do not
    divide the heads, rotary positions for heads of an odd number of features.
    """

    vocab: int = 256  # the values of a byte
    context: int = 64  # the longest sequence, in tokens; with rotary positions, of training
    num_layers: int = 2
    hidden: int = 64
    num_heads: int = 4
    ffn: int | None = None  # features inside the MLP; None: 4 * hidden, see `ffn_hidden`
    num_kv_heads: int | None = None  # as many heads share one's keys and values; None: none do
    rotary: bool = False  # positions turn queries and keys, instead of a learned table

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name == "rotary":
                continue
            size = getattr(self, field.name)
            if field.name in ("ffn", "num_kv_heads") and size is None:
                continue
            arguments.whole(field.name, size, "1 or more")
        if self.hidden % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} does not divide hidden={self.hidden}, and heads are "
                f"equal slices of it; try num_heads={math.gcd(self.num_heads, self.hidden)}"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}, and "
                "every key-value head serves as many heads as another; try "
                f"num_kv_heads={math.gcd(self.kv_heads, self.num_heads)}"
            )
        if self.rotary and self.head_dim % 2:
            raise ValueError(
                f"rotary positions turn pairs of features, and heads have {self.head_dim}; give "
                "a hidden that is an even multiple of num_heads"
            )

    @property
    def max_positions(self) -> int | None:
        """Tokens of the longest sequence that has positions; None: no limit (rotary)."""
        return None if self.rotary else self.context

    @property
    def head_dim(self) -> int:
        """K: the features of one head."""
        return self.hidden // self.num_heads

    @property
    def kv_heads(self) -> int:
        """G: the heads of keys and values (grouped-query attention, if below H)."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def ffn_hidden(self) -> int:
        """F: the features inside the MLP."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    def state_dict(self) -> dict[str, Any]:
        """Return the sizes by name: Checkpointer(..., extra={"config": config}) saves them, too."""
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare with saved sizes. ValueError: they are of another model."""
        if (saved := GPTConfig(**state)) != self:
            raise ValueError(f"the checkpoint is of {saved}, and the model is of {self}")
