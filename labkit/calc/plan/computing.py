"""Seconds that one GPU computes: matrix products, attention, and what only moves bytes.

    products     2 T (I + edge) (O + edge) FLOPs / (matmul_share * peak)
    attention    4 K FLOPs a pair of tokens and head / (share * peak), where
                 share = attention_share * s / (s + attention_ramp)
                 without flash: two products of I = K and O = s in each head
    moved        bytes to and from the GPU's own memory / (memory_share * bandwidth)

Products have T tokens, I features in and O out. Tensor parallelism divides I or O. Backward has two
products of the same sizes. The edge, Assumptions.product_edge, makes small products slow: a kernel
starts and ends its pipeline there, and computes whole tiles where a matrix ends.

Attention with flash computes the pairs that the causal mask leaves, and whole blocks of 128 tokens
on the diagonal. Backward takes 2.5 times forward, because it computes the scores again, which were
never written down. Layers with a window have fewer pairs; the mean over the layers counts.

Bytes forward, of numbers with b bytes, for each token of a microbatch:

    norms, residuals     10 D                                 / t with sequence parallelism
    experts              4 k D, permuted and back             / t with sequence parallelism
    linear layers        4 D + 4 HK + 4 GK + 4 F, gated 6 F   D whole, the rest / t
    attention's scores   4 H s, not with flash                / t
    fp8                  4 bytes for each number that is quantized: it is read, and written twice,
                         because Hopper multiplies transposed numbers
    and for each weight  K_p forward; K_p + 2 K_g backward

Backward has twice as many bytes of tokens. Products in fp8 have the peak of fp8; attention and the
head stay in 16 bits.

Recomputed in full: forward again, in backward. By operations: half of the products again, and what
moves bytes, as torchtitan, which keeps every second product and attention. Selective: scores; of
latent attention the products that make queries, keys and values, as DeepSeek-V3.

Papers: Narayanan et al., arXiv:2104.04473, section 5.1, for FLOPs; Dao, arXiv:2307.08691, for five
products backward where forward has two; Micikevicius et al., arXiv:2209.05433, for fp8.
"""

from __future__ import annotations

from typing import NamedTuple

from labkit.calc.models import ModelConfig
from labkit.calc.parameters import attention_parameters, layer_norms, mlp_parameters
from labkit.calc.plan.job import Job

BLOCK_TOKENS = 128
"""Tokens of a block of attention, as in FlashAttention-2 for heads of 128 features."""
_QUANTIZING_BYTES = 4


class Product(NamedTuple):
    """Matrix products of one shape: `num` of them, each for `tokens` rows."""

    num: float
    tokens: float
    into: float
    out: float


class Work(NamedTuple):
    """Seconds of one pass by kind."""

    products: float
    attention: float
    moved: float


def product_seconds(job: Job, products: list[Product], *, wide: bool = False) -> float:
    """Return the seconds of matrix products. wide: in 16 bits also where the job computes in 8."""
    device, edge = job.device, job.assumptions.product_edge
    peak = device.flops_per_s if wide or job.precision == "bf16" else device.fp8_flops_per_s
    return product_flops(products, edge) / (device.matmul_share * peak)


def product_flops(products: list[Product], edge: float = 0.0) -> float:
    """Return the FLOPs of matrix products, each of whose weights has both sides longer by edge."""
    return 2 * sum(
        num * tokens * (into + edge) * (out + edge) for num, tokens, into, out in products
    )


def moved_seconds(job: Job, nbytes: float) -> float:
    """Return the seconds of reading and writing bytes of the GPU's own memory."""
    return nbytes / (job.assumptions.memory_share * job.device.memory_bytes_per_s)


def attention_seconds(job: Job, tokens: float) -> float:
    """Return forward's seconds of a layer's scores in all heads, and of their product with V."""
    device, config = job.device, job.config
    if job.assumptions.flash:
        rising = device.attention_share * job.length / (job.length + device.attention_ramp)
        share = job.assumptions.attention_share or rising
        return score_flops(job, tokens) / (share * device.flops_per_s)
    features, heads = config.features_per_head, config.heads
    scores = Product(heads, tokens, features, job.length)
    return product_seconds(job, [scores, scores], wide=True)


def attention_backward(job: Job) -> float:
    """Return backward's seconds of attention, as a multiple of forward's."""
    return 2.5 if job.assumptions.flash else 2.0


def score_flops(job: Job, tokens: float) -> float:
    """Return forward FLOPs of a layer's scores in all heads; with flash, of the unmasked half."""
    config, length = job.config, job.length
    features = config.features_per_head * 2
    if config.is_latent:
        features = config.features_per_head + config.rope_head_dim + config.value_head_dim
    seen = 0.0
    for kind in config.kinds:
        most = config.seen_tokens(kind, length)
        masked = most * most / length / 2 - (BLOCK_TOKENS / 2 if most else 0)
        seen += most - masked if job.assumptions.flash else length
    return 2 * config.heads * features * seen / config.layers * tokens


def layer_work(
    job: Job, tokens: int, tp: int, ep: float, sequence_parallel: bool, num_experts: int
) -> tuple[Work, Work]:
    """Return (forward, backward) of a layer; num_experts: that a token goes through; 0: dense."""
    config, kept = job.config, job.kept
    products = [*_attention_products(config, tokens, tp)]
    held: float = attention_parameters(config) + layer_norms(config)
    if num_experts:
        F, own = config.expert_features, config.num_experts / ep
        rows = tokens * num_experts / own
        products += [Product(1, tokens, config.hidden, config.num_experts)]
        products += _mlp_products(config, own, rows, F / tp)
        products += _mlp_products(config, 1, tokens, config.shared_experts * F / tp)
        held += config.hidden * config.num_experts
        held += (own + config.shared_experts) * mlp_parameters(config, F)
    else:
        products += _mlp_products(config, 1, tokens, config.mlp_features / tp)
        held += mlp_parameters(config, config.mlp_features)
    computed_with = kept.cast_bytes or kept.parameter_bytes
    token_bytes = tokens * _bytes_of_a_token(job, tp, sequence_parallel, num_experts)
    quantized = [0.0, 0.0]
    if job.precision == "fp8":
        quantized = [
            _QUANTIZING_BYTES
            * sum(num * rows * (into, out)[side] for num, rows, into, out in products)
            for side in range(2)
        ]
        quantized[0] += _QUANTIZING_BYTES * held / tp
    products_s = product_seconds(job, products)
    attention_s = attention_seconds(job, tokens) / tp
    of_weights = (computed_with + 2 * kept.gradient_bytes) * held / tp
    return (
        Work(
            products_s,
            attention_s,
            moved_seconds(job, token_bytes + quantized[0] + computed_with * held / tp),
        ),
        Work(
            2 * products_s,
            attention_backward(job) * attention_s,
            moved_seconds(job, 2 * token_bytes + quantized[1] + of_weights),
        ),
    )


def layer_compute(
    job: Job, tokens: int, tp: int, ep: float, sequence_parallel: bool, recompute: str,
    num_experts: int,
) -> tuple[float, float]:  # fmt: skip
    """Return (forward, backward) seconds of a layer; what is recomputed is in backward."""
    forward, backward = layer_work(job, tokens, tp, ep, sequence_parallel, num_experts)
    again = 0.0
    if recompute == "full":
        again = sum(forward)
    elif recompute == "operations":
        again = forward.products / 2 + forward.moved
    elif recompute == "selective" and job.config.is_latent:
        again = product_seconds(job, up_projections(job.config, tokens, tp))
    elif recompute == "selective" and not job.assumptions.flash:
        scores = tokens * _score_bytes(job) / tp
        again = forward.attention + moved_seconds(job, scores)
    return sum(forward), sum(backward) + again


def _attention_products(config: ModelConfig, tokens: float, tp: int) -> list[Product]:
    D, H, K = config.hidden, config.heads / tp, config.features_per_head
    if not config.is_latent:
        gate = config.attention_gate * H * K
        fused = H * K + gate + 2 * max(1, config.num_kv_heads / tp) * K
        return [Product(1, tokens, D, fused), Product(1, tokens, H * K, D)]
    R, Q, C = config.rope_head_dim, config.q_lora_rank, config.kv_lora_rank
    V = config.value_head_dim
    return [
        *([Product(1, tokens, D, Q)] if Q else []),
        Product(1, tokens, D, C + R),
        *up_projections(config, tokens, tp),
        Product(1, tokens, H * V, D),
    ]


def up_projections(config: ModelConfig, tokens: float, tp: int) -> list[Product]:
    """Return the products that make latent attention's queries, keys and values."""
    H, K = config.heads / tp, config.features_per_head
    query = config.q_lora_rank or config.hidden
    return [
        Product(1, tokens, query, H * (K + config.rope_head_dim)),
        Product(1, tokens, config.kv_lora_rank, H * (K + config.value_head_dim)),
    ]


def _mlp_products(config: ModelConfig, num: float, tokens: float, features: float) -> list[Product]:
    if not features:
        return []
    inner = 2 * features if config.gated else features
    return [
        Product(num, tokens, config.hidden, inner),
        Product(num, tokens, features, config.hidden),
    ]


def _score_bytes(job: Job) -> float:
    """Bytes of a token's attention scores in all heads, with a fused softmax.

    The scores are written, read and written by the softmax, and read.
    """
    return 4 * job.kept.activation_itemsize * job.config.heads * job.length


def _bytes_of_a_token(job: Job, tp: int, sequence_parallel: bool, num_experts: int) -> float:
    """Return a token's forward bytes on one rank: each tensor is written and read once."""
    config = job.config
    D, H, K = config.hidden, config.heads, config.features_per_head
    keys = config.heads if config.is_latent else config.num_kv_heads
    features = config.mlp_features
    if num_experts:
        features = (num_experts + config.shared_experts) * config.expert_features
    replicated = 10 * D + (4 * num_experts * D)  # experts: permuted, and back
    cut = 2 * (H + 2 * keys) * K + 2 * H * K + (6 if config.gated else 4) * features
    moved = replicated / (tp if sequence_parallel else 1) + 4 * D + cut / tp
    scores = 0 if job.assumptions.flash else _score_bytes(job) / tp
    return job.kept.activation_itemsize * moved + scores
