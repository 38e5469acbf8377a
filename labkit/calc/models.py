"""Models by their configuration: sizes, the kinds of their layers, and published ones by name.

    calc.MODELS["llama3-8b"]
    dataclasses.replace(calc.MODELS["llama3-8b"], layers=16)
    calc.model_from_config("config.json")                                   hf_config.py

A layer has a mixer, in which tokens see each other, and an MLP. Where layers differ, `pattern`
lists the kinds of the first ones, and is repeated until there are `layers` of them:

    mixer    full         every token before it
             window       the last `window` tokens
             recurrent    a state of fixed size (state-space models, linear attention)
             none
    MLP      dense, experts, none

    5 of 6 layers windowed, as Gemma 3    (Layer("window"),) * 5 + (Layer("full"),)
    experts in every second layer         (Layer(), Layer(mlp="experts"))

Every number of a published model is from its own configuration file or its paper. The context is
the paper's, if there is one: files hold the context that a model can be served with, after stages
that make it longer.

Sources: Radford et al. 2019 (GPT-2); Brown et al., arXiv:2005.14165, table 2.1 (GPT-3); Touvron et
al., arXiv:2302.13971 and arXiv:2307.09288 (LLaMA, Llama 2); Grattafiori et al., arXiv:2407.21783
(Llama 3); Qwen2.5, arXiv:2412.15115; Jiang et al., arXiv:2401.04088 (Mixtral); DeepSeek-V3,
arXiv:2412.19437; Narayanan et al., arXiv:2104.04473, table 1; Korthikanti et al.,
arXiv:2205.05198, table 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple

from labkit import arguments

MIXERS = ("full", "window", "recurrent", "none")
MLPS = ("dense", "experts", "none")
BIASES = ("qkv", "out", "mlp", "norms", "head", "router")
_ALL_BIASES = ("qkv", "out", "mlp", "norms")


class Layer(NamedTuple):
    """The kind of one layer."""

    mixer: str = "full"
    mlp: str = "dense"


DENSE = Layer()


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Configuration of a decoder-only transformer. ValueError for impossible sizes, with a
    reason."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    context: int
    """Sequence length of most of its pre-training, in tokens; later stages, and YaRN, go
    further. With learned positions it is the length of their table, and no sequence is longer.
    It is the default of every `sequence` argument."""

    kv_heads: int | None = None
    """Key and value heads, shared by groups of query heads; None: as many as `heads`."""
    head_dim: int | None = None
    """Features of a head; None: hidden / heads."""
    ffn: int | None = None
    """Features inside the MLP; None: 4 * hidden."""
    gated: bool = False
    """Three matrices in an MLP (gate, up, down), as in SwiGLU, and not two."""
    tied: bool = True
    """The head is the token embedding, and counts once."""
    biases: bool | tuple[str, ...] = True
    """Which parts have biases: some of BIASES. True: linear layers and norms; False: none."""
    learned_positions: bool | int = True
    """A table of positions, of `context` rows or of so many, and not rotations, which have no
    parameters."""
    norms: int = 2
    """Norms of a layer with weights; 0: there are norms, but without weights, the last one too."""
    qk_norm: str = ""
    """Norms of queries and of keys: "head": one for all heads; "all": of all heads' features."""
    embedding_norm: bool = False
    attention_gate: bool = False
    """Attention's output is multiplied by a gate, a projection as large as the query's."""
    sinks: bool = False
    """A learned score of each head that no token has, in the softmax."""

    pattern: tuple[Layer, ...] = ()
    """Kinds of the first layers, repeated; (): all full, or all windowed where there is a
    `window`, and experts, where there are any, in all but the first `dense_layers`."""
    window: int = 0
    """Tokens that a windowed layer sees, its own one included."""
    recurrent_state: int = 0
    """Numbers that a recurrent layer keeps of a request."""
    recurrent_parameters: int = 0
    """Parameters of one recurrent mixer, its own norms included."""

    num_experts: int = 0
    """Routed experts in a layer; 0: dense."""
    top_k: int = 0
    """Routed experts that a token goes through."""
    shared_experts: int = 0
    """Experts that every token goes through besides."""
    shared_gate: bool = False
    """A score by which the shared experts' output is multiplied."""
    expert_ffn: int | None = None
    """Features inside one expert; None: as `ffn`."""
    dense_layers: int = 0
    """The first layers that have no experts."""

    kv_lora_rank: int = 0
    """Multi-head latent attention: features to which keys and values are compressed; 0: none."""
    q_lora_rank: int = 0
    rope_head_dim: int = 0
    """Rotated features of a latent head, whose key all heads share."""
    value_head_dim: int = 0

    omitted: tuple[str, ...] = ()
    """Parts of the model that no count here has, such as "1 module for multi-token prediction"."""

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.type in ("int", "int | None") and value is not None:
                least = 0 if each.default == 0 or each.name == "norms" else 1
                arguments.whole(each.name, value, f"{least} or more", least=least)
        object.__setattr__(self, "biases", _names_of_biases(self.biases))
        object.__setattr__(self, "pattern", tuple(Layer(*each) for each in self.pattern))
        if self.qk_norm not in ("", "head", "all"):
            raise ValueError(f"qk_norm={self.qk_norm!r:.60}: give 'head', 'all' or ''")
        self._check_heads()
        self._check_experts()
        self._check_kinds()

    def _check_heads(self) -> None:
        if self.head_dim is None and self.hidden % self.heads:
            like = [n for n in arguments.divisors(self.hidden) if n <= 2 * self.heads]
            nearest = min(like, key=lambda n: (abs(n - self.heads), n))
            raise ValueError(
                f"heads={self.heads} does not divide hidden={self.hidden}; say head_dim where "
                f"heads are no equal slices, or try heads={nearest}"
            )
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"kv_heads={self.kv_heads} does not divide heads={self.heads}: each key and value "
                "head serves as many query heads as every other"
            )
        if self.is_latent and not (self.rope_head_dim and self.value_head_dim):
            raise ValueError(
                f"kv_lora_rank={self.kv_lora_rank} means latent attention, which also needs "
                "rope_head_dim and value_head_dim"
            )
        if self.is_latent and (self.has_bias("qkv") or self.has_bias("out")):
            raise ValueError("latent attention is counted without biases; pass biases=False")
        if not self.is_latent and (self.q_lora_rank or self.rope_head_dim or self.value_head_dim):
            raise ValueError("q_lora_rank, rope_head_dim and value_head_dim need kv_lora_rank")

    def _check_experts(self) -> None:
        if self.num_experts and not 1 <= self.top_k <= self.num_experts:
            raise ValueError(
                f"top_k={self.top_k} of num_experts={self.num_experts}: a token goes through 1 or "
                "more of them, and at most all"
            )
        of_experts = ("top_k", "shared_experts", "dense_layers", "expert_ffn", "shared_gate")
        if not self.num_experts and any(getattr(self, name) for name in of_experts):
            raise ValueError(f"{', '.join(of_experts)} need num_experts")
        if self.dense_layers > self.layers:
            raise ValueError(f"dense_layers={self.dense_layers} exceed layers={self.layers}")

    def _check_kinds(self) -> None:
        needs = {"window": "window", "recurrent": "recurrent_state", "experts": "num_experts"}
        for layer in set(self.pattern):
            if layer.mixer not in MIXERS or layer.mlp not in MLPS:
                raise ValueError(
                    f"{layer}: a mixer is one of {', '.join(MIXERS)}, an MLP one of "
                    f"{', '.join(MLPS)}"
                )
            for kind in set(layer) & set(needs):
                if not getattr(self, needs[kind]):
                    raise ValueError(f"{layer}: a layer with {kind!r} needs {needs[kind]}=")

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The kind of each layer."""
        if self.pattern:
            times = -(-self.layers // len(self.pattern))
            return (self.pattern * times)[: self.layers]
        mixer = "window" if self.window else "full"
        mlp = "experts" if self.num_experts else "dense"
        return (Layer(mixer, "dense"),) * self.dense_layers + (Layer(mixer, mlp),) * (
            self.layers - self.dense_layers
        )

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def features_per_head(self) -> int:
        """Features of a query and a key; with latent attention, those that are not rotated."""
        return self.hidden // self.heads if self.head_dim is None else self.head_dim

    @property
    def mlp_features(self) -> int:
        """Features inside a dense MLP."""
        return 4 * self.hidden if self.ffn is None else self.ffn

    @property
    def expert_features(self) -> int:
        """Features inside one expert."""
        return self.mlp_features if self.expert_ffn is None else self.expert_ffn

    @property
    def is_latent(self) -> bool:
        """Return whether keys and values are compressed (MLA)."""
        return self.kv_lora_rank > 0

    @property
    def is_hybrid(self) -> bool:
        """Return whether some layers have no attention, or no MLP."""
        return any(kind.mixer in ("recurrent", "none") or kind.mlp == "none" for kind in self.kinds)

    @property
    def expert_layers(self) -> int:
        """Layers that have experts."""
        return sum(kind.mlp == "experts" for kind in self.kinds)

    @property
    def position_rows(self) -> int:
        """Rows of the table of positions; 0: there is none."""
        learned = self.learned_positions
        return self.context if learned is True else int(learned)

    def has_bias(self, part: str) -> bool:
        """Return whether a part, one of BIASES, has a bias."""
        assert isinstance(self.biases, tuple)
        return part in self.biases

    def seen_tokens(self, kind: Layer, length: float) -> float:
        """Return the most tokens that a layer of this kind looks at, of `length`."""
        if kind.mixer == "window":
            return min(length, self.window)
        return length if kind.mixer == "full" else 0


def _names_of_biases(biases: bool | Iterable[str]) -> tuple[str, ...]:
    if isinstance(biases, bool):
        return _ALL_BIASES if biases else ()
    names = tuple(biases)
    if unknown := [name for name in names if name not in BIASES]:
        raise ValueError(f"biases={biases!r:.80}: {unknown[0]!r} is none of {', '.join(BIASES)}")
    return tuple(name for name in BIASES if name in names)


_gpt2 = partial(ModelConfig, vocab=50257, context=1024)
_llama = partial(ModelConfig, gated=True, tied=False, biases=False, learned_positions=False)
_llama1 = partial(_llama, vocab=32000, context=2048)
_llama2 = partial(_llama, vocab=32000, context=4096)
_llama3 = partial(_llama, vocab=128256, context=8192, kv_heads=8)
_megatron = partial(ModelConfig, vocab=51200, context=2048)

MODELS: Mapping[str, ModelConfig] = MappingProxyType(
    {
        "gpt2": _gpt2(layers=12, hidden=768, heads=12),
        "gpt2-medium": _gpt2(layers=24, hidden=1024, heads=16),
        "gpt2-large": _gpt2(layers=36, hidden=1280, heads=20),
        "gpt2-xl": _gpt2(layers=48, hidden=1600, heads=25),
        "gpt3-175b": ModelConfig(layers=96, hidden=12288, heads=96, vocab=50257, context=2048),
        "llama1-7b": _llama1(layers=32, hidden=4096, heads=32, ffn=11008),
        "llama1-13b": _llama1(layers=40, hidden=5120, heads=40, ffn=13824),
        "llama1-33b": _llama1(layers=60, hidden=6656, heads=52, ffn=17920),
        "llama1-65b": _llama1(layers=80, hidden=8192, heads=64, ffn=22016),
        "llama2-7b": _llama2(layers=32, hidden=4096, heads=32, ffn=11008),
        "llama2-13b": _llama2(layers=40, hidden=5120, heads=40, ffn=13824),
        "llama2-70b": _llama2(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672),
        "llama3-8b": _llama3(layers=32, hidden=4096, heads=32, ffn=14336),
        "llama3-70b": _llama3(layers=80, hidden=8192, heads=64, ffn=28672),
        # Its file says 131,072: it went there in six stages, after most of the 15.6T tokens.
        "llama3-405b": _llama3(layers=126, hidden=16384, heads=128, ffn=53248),
        # Their files say 131,072. No paper says what pre-training had, so this is the family's.
        "llama3.2-1b": _llama3(layers=16, hidden=2048, heads=32, ffn=8192, tied=True),
        "llama3.2-3b": _llama3(layers=28, hidden=3072, heads=24, ffn=8192, tied=True),
        # Its file says 131,072, which is YaRN's; the last stage of pre-training had 32,768.
        "qwen2.5-7b": _llama(
            layers=28, hidden=3584, heads=28, kv_heads=4, ffn=18944, vocab=152064, context=4096,
            biases=("qkv",),
        ),
        "mixtral-8x7b": _llama(
            layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, context=32768,
            num_experts=8, top_k=2,
        ),
        # Its file says 163,840; 32,768 and 131,072 came after pre-training.
        "deepseek-v3": _llama(
            layers=61, hidden=7168, heads=128, vocab=129280, context=4096, ffn=18432,
            head_dim=128, rope_head_dim=64, value_head_dim=128, q_lora_rank=1536, kv_lora_rank=512,
            num_experts=256, top_k=8, shared_experts=1, expert_ffn=2048, dense_layers=3,
            biases=("router",),
        ),
        "narayanan-1.7b": _megatron(layers=24, hidden=2304, heads=24),
        "narayanan-145b": _megatron(layers=80, hidden=12288, heads=96),
        "narayanan-1t": _megatron(layers=128, hidden=25600, heads=160),
        "korthikanti-22b": _megatron(layers=48, hidden=6144, heads=64),
    }
)  # fmt: skip
"""By name, in lower case."""


def model(config: ModelConfig | str) -> ModelConfig:
    """Return a configuration, given itself or by its name in MODELS. ValueError names near ones."""
    return arguments.named(config, ModelConfig, MODELS)


def sequence_length(config: ModelConfig, sequence: int | None) -> int:
    """Return the tokens of a sequence; None: the model's context. ValueError: too long."""
    if sequence is None:
        return config.context
    length = arguments.counted("sequence", sequence)
    if config.learned_positions and length > config.context:
        raise ValueError(
            f"sequence={length}: the model has learned {config.context} positions, and none for "
            f"the tokens after them; give {config.context} or fewer, or a ModelConfig with a "
            "larger context"
        )
    return length
