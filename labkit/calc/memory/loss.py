"""Head and loss: bytes of one microbatch on the last stage, for each way to compute the loss.

Per token of a microbatch, for D features, V tokens in the vocabulary, t ranks of tensor
parallelism, b bytes of an activation, l = 4 bytes of a number in the loss:

    inputs of the last norm, of the head   b D + b D      whole; / t with sequence parallelism

    loss       kept until backward          as backward begins, beside it              all / t
    unfused    logits b V, log-softmax l V  gradients of log-softmax and of logits     2 l V
    freed      log-softmax l V              the same, with t > 1 exponentials too      2 or 3 l V
    fused      logits b V                   nothing: the gradient is written over it   0
    chunked    nothing                      all four, of an eighth of the tokens       (b + 3 l) V/8

unfused: torch's cross_entropy on logits in float32, whose caller holds the logits. freed: the same
after `del logits`, as torchtitan does between forward and backward; where ranks shard the
vocabulary, torch's loss_parallel makes the gradient from zeros, exponentials and their sum.

Forward itself has b V, their copy in float32 and the log-softmax: less than backward begins with.

Wire: nothing. Paper: Korthikanti et al., arXiv:2205.05198, section 4.3. Sources: torch's
distributed/tensor/parallel/loss.py; torchtitan's train.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from labkit import arguments
from labkit.calc.memory.activations import tokens_of_a_rank
from labkit.calc.models import ModelConfig, model
from labkit.calc.result import Result, total

_SOURCE = "Korthikanti et al., arXiv:2205.05198, section 4.3"
_CHUNKS = 8
"""Parts of a microbatch, which a chunked loss goes through one after the other."""


class _Loss(NamedTuple):
    """Tensors of a loss, with b or l for the bytes of a number."""

    kept: Mapping[str, str]
    """From forward to backward."""
    passing: Mapping[str, str]
    """As backward begins."""
    passing_sharded: Mapping[str, str] = MappingProxyType({})
    """More of them where ranks shard the vocabulary."""
    chunks: int = 1
    """Parts of the tokens, of which one is computed at a time."""


_LOGITS, _LOG_SOFTMAX = {"logits": "b"}, {"log-softmax": "l"}
_GRADIENTS = {"gradient of the log-softmax": "l", "gradient of the logits": "l"}
LOSSES: Mapping[str, _Loss] = MappingProxyType(
    {
        "unfused": _Loss(_LOGITS | _LOG_SOFTMAX, _GRADIENTS),
        "freed": _Loss(_LOG_SOFTMAX, _GRADIENTS, {"exponentials": "l"}),
        "fused": _Loss(_LOGITS, {}),
        "chunked": _Loss(
            {},
            {f"{name} of a chunk": size for name, size in (_LOGITS | _LOG_SOFTMAX).items()}
            | _GRADIENTS,
            chunks=_CHUNKS,
        ),
    }
)


def head_input_bytes(
    config: ModelConfig | str,
    microbatch: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    cp: int = 1,
    *,
    sequence: int | None = None,
    itemsize: int = 2,
) -> Result:
    """Return 2 b D per token: inputs of the last norm and of the head, for one microbatch.

    microbatch: sequences. sequence: tokens of each; None: the model's context. itemsize: bytes of
    an activation. Cut like the inputs of the layers' norms. ValueError for tokens that ranks cut
    unevenly, and for more of them than learned positions.
    """
    config, tp = model(config), arguments.counted("tp", tp)
    whole, itemsize = tp if sequence_parallel else 1, arguments.counted("itemsize", itemsize)
    tokens = tokens_of_a_rank(config, sequence, microbatch, cp, whole)
    return Result(
        2 * itemsize * config.hidden * tokens / whole,
        "bytes",
        "inputs of the last norm and of the head",
        "2 b D T, over t ranks with sequence parallelism; b bytes a number, D features, T tokens",
        f"2 * {tokens:,} tokens * {config.hidden:,} * {itemsize} B"
        + (f" / {whole}" if whole > 1 else ""),
        source=_SOURCE,
    )


def logits_bytes(
    config: ModelConfig | str,
    microbatch: int,
    tp: int = 1,
    cp: int = 1,
    *,
    sequence: int | None = None,
    itemsize: int = 2,
    loss_itemsize: int = 4,
    loss: str = "unfused",
) -> Result:
    """Return logits, and what the loss keeps of them for backward, of one microbatch.

    itemsize: bytes of a logit. loss_itemsize: of a number in the loss. tp: ranks over which the
    vocabulary is split. loss: one of LOSSES, as the table above has them. For a vocabulary of
    128,256 that is more than several layers hold. `loss_gradient_bytes` has the gradients.
    ValueError for tokens that cp cuts unevenly, and for more than learned positions.
    """
    of = LOSSES[checked_loss(loss)]
    logits = _Logits.of(config, microbatch, tp, cp, sequence, itemsize, loss_itemsize)
    return logits.total(
        "logits and loss", of.kept, 1, f"{loss} loss", "a chunk's are gone before the next"
    )


def loss_gradient_bytes(
    config: ModelConfig | str,
    microbatch: int,
    tp: int = 1,
    cp: int = 1,
    *,
    sequence: int | None = None,
    itemsize: int = 2,
    loss_itemsize: int = 4,
    loss: str = "unfused",
) -> Result:
    """Return what the loss holds for a moment as backward begins, beside `logits_bytes`.

    Unfused, that is the gradients of log-softmax and logits, 4 + 4 bytes of each logit beside the
    2 + 4 that are kept. A fused loss needs nothing more. One in chunks has all 14 bytes, of an
    eighth of the tokens. Arguments and errors as in `logits_bytes`.
    """
    of = LOSSES[checked_loss(loss)]
    logits = _Logits.of(config, microbatch, tp, cp, sequence, itemsize, loss_itemsize)
    passing = {**of.passing, **(of.passing_sharded if logits.ranks > 1 else {})}
    return logits.total(
        "gradients of the loss", passing, of.chunks, f"{loss} loss", "the logits are written over"
    )


class _Logits(NamedTuple):
    """The logits of a rank, and the bytes of a number by letter."""

    num: int
    how: str
    ranks: int
    sizes: Mapping[str, int]

    @classmethod
    def of(
        cls,
        config: ModelConfig | str,
        microbatch: int,
        tp: int,
        cp: int,
        sequence: int | None,
        itemsize: int,
        loss_itemsize: int,
    ) -> _Logits:
        config, tp = model(config), arguments.counted("tp", tp)
        tokens = tokens_of_a_rank(config, sequence, microbatch, cp)
        how = f"{tokens:,} tokens * {config.vocab:,}" + (f" / {tp}" if tp > 1 else "")
        sizes = {
            "b": arguments.counted("itemsize", itemsize),
            "l": arguments.counted("loss_itemsize", loss_itemsize),
        }
        return cls(tokens * -(-config.vocab // tp), how, tp, sizes)

    def total(
        self, name: str, tensors: Mapping[str, str], chunks: int, convention: str, why_none: str
    ) -> Result:
        """Return the sum over tensors, given by the letter of their bytes. why_none: for 0."""
        if not tensors:
            return Result(0.0, "bytes", name, "0", f"0: {why_none}", convention)
        count, how = -(-self.num // chunks), self.how + (f" / {chunks}" if chunks > 1 else "")
        parts = {
            part: Result(
                count * self.sizes[letter],
                "bytes",
                part,
                substitution=f"{how} * {self.sizes[letter]} B",
            )
            for part, letter in tensors.items()
        }
        cut = "".join(f" / {each}" for each in (chunks, "t") if each != 1)
        return total(
            name,
            parts,
            formula=f"T V ({' + '.join(tensors.values())}){cut}; T tokens, V words, t ranks, "
            "b bytes of a logit, l of a number in the loss",
            convention=convention,
        )


def head_parts(
    config: ModelConfig | str,
    microbatch: int,
    tp: int,
    sequence_parallel: bool,
    cp: int,
    *,
    sequence: int | None,
    itemsize: int,
    loss: str,
) -> dict[str, Result]:
    """Return the parts that the last stage holds for head and loss, one microbatch in flight."""
    cut = (config, microbatch, tp, cp)
    inputs = head_input_bytes(*cut[:3], sequence_parallel, cp, sequence=sequence, itemsize=itemsize)
    of_logits = (f(*cut, sequence=sequence, itemsize=itemsize, loss=loss) for f in _OF_LOGITS)
    return {"head inputs": inputs} | {each.name: each for each in of_logits}


_OF_LOGITS = (logits_bytes, loss_gradient_bytes)


def checked_loss(loss: str) -> str:
    """Return one of LOSSES. ValueError for anything else, with their names."""
    if loss not in LOSSES:
        raise ValueError(f"loss={loss!r:.60}: give one of {', '.join(LOSSES)}")
    return loss
