"""What the last stage holds for its head and the loss, besides its layers.

Per token of a microbatch, in bytes, for V tokens in the vocabulary, D hidden features, b bytes of
an activation, t ranks of tensor parallelism:

    from forward to backward   inputs of the last norm, of the head   b D + b D      whole, or / t
                                                                     with sequence parallelism
                               logits                                 b V            / t
                               log-softmax                            4 V            / t
    as backward begins         gradients of log-softmax, of logits    4 V + 4 V      / t

That is torch's cross_entropy on logits in float32: both gradients are alive at once, beside all
that is kept. A fused loss, or one that goes through the tokens piece by piece, has less.

Wire: nothing. Paper: Korthikanti et al., arXiv:2205.05198, section 4.3, for what is kept.
"""

from __future__ import annotations

from labkit.calc.checked_numbers import check_flag, check_itemsize, check_ranks
from labkit.calc.memory.activations import tokens_of_a_rank
from labkit.calc.models.model_config import ModelConfig
from labkit.calc.models.presets import model
from labkit.calc.result import Result, total

_SOURCE = "Korthikanti et al., arXiv:2205.05198, section 4.3"


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
    """2 b D per token: inputs of the last norm and of the head, kept for one microbatch.

    microbatch: sequences. sequence: tokens of each; None: the model's context. itemsize: bytes of
    an activation. Cut like the inputs of the layers' norms. ValueError for tokens that ranks cut
    unevenly, and for more of them than learned positions.
    """
    config, tp = model(config), check_ranks(tp, "tp")
    check_flag(sequence_parallel, "sequence_parallel")
    whole, itemsize = tp if sequence_parallel else 1, check_itemsize(itemsize)
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
) -> Result:
    """Logits, and what the loss keeps of them for backward: of one microbatch, on the last stage.

    The loss is computed in float32 (loss_itemsize), and keeps one number for each logit. tp: ranks
    over which the vocabulary is split. For a vocabulary of 128,256 that is more than several
    layers hold. What backward makes of them is another function's: `loss_gradient_bytes`.
    ValueError for tokens that cp cuts unevenly, and for more than learned positions.
    """
    count, how = _logits(config, microbatch, tp, cp, sequence)
    parts = {
        name: _part(name, count, how, size)
        for name, size in (
            ("logits", check_itemsize(itemsize)),
            ("log-softmax", check_itemsize(loss_itemsize, "loss_itemsize")),
        )
    }
    return total(
        "logits and loss",
        parts,
        formula="T V (itemsize + loss_itemsize) / t; T tokens, V words, t ranks",
    )


def loss_gradient_bytes(
    config: ModelConfig | str,
    microbatch: int,
    tp: int = 1,
    cp: int = 1,
    *,
    sequence: int | None = None,
    loss_itemsize: int = 4,
) -> Result:
    """Gradients of the log-softmax and of the logits, alive together as backward begins.

    Arguments and errors as of `logits_bytes`, beside which this stands: 2 + 4 bytes of each logit
    are kept, and 4 + 4 come for a moment.
    """
    count, how = _logits(config, microbatch, tp, cp, sequence)
    size = check_itemsize(loss_itemsize, "loss_itemsize")
    names = ("gradient of the log-softmax", "gradient of the logits")
    return total(
        "gradients of the loss",
        {name: _part(name, count, how, size) for name in names},
        formula="2 T V loss_itemsize / t; T tokens, V words, t ranks",
        convention=f"torch's cross_entropy on {size} B logits; a fused loss, or one that goes "
        "through the tokens piece by piece, has less",
    )


def _logits(
    config: ModelConfig | str, microbatch: int, tp: int, cp: int, sequence: int | None
) -> tuple[int, str]:
    """How many this rank has, and how that comes."""
    config, tp = model(config), check_ranks(tp, "tp")
    tokens = tokens_of_a_rank(config, sequence, microbatch, cp)
    how = f"{tokens:,} tokens * {config.vocab:,}" + (f" / {tp}" if tp > 1 else "")
    return tokens * -(-config.vocab // tp), how


def _part(name: str, count: int, how: str, size: int) -> Result:
    return Result(count * size, "bytes", name, substitution=f"{how} * {size} B")
