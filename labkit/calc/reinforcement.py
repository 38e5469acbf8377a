"""Reinforcement learning of a language model: models held, bytes of a weight update, a step's time.

The models that are held at once, with K bytes of states for each trained parameter and w for each
frozen one:

                policy    critic    reference    reward model    generator's copy
    PPO          K N       K N         w N            w N              w N
    GRPO         K N        -          w N            w N              w N
                                       with KL        not with a       engines apart
                                                      verifier

A weight update brings the trainer's parameters to the ranks that generate. A replica splits them
over t ranks:

    by bytes needed    N w / t        each rank receives the part that it serves
    everything         N w            each rank receives all, and drops what others serve
    on shared GPUs     (1/t - 1/n) N w, or (1 - 1/n) N w: a rank has 1/n of the weights already

A step, where a batch may be trained on when the policy that generated it is at most eta versions
old. g seconds generate a batch with every slot busy, L are between its start and its last answer,
t train on it, and u send the weights:

    version v --- L ---> batch v + eta is generated --- t ---> version v + eta + 1

    max(g, t, (L + t) / (eta + 1)) + u        eta = 0: L + t + u, one after the other

Papers: Schulman et al., PPO, arXiv:1707.06347; Shao et al., DeepSeekMath (GRPO), arXiv:2402.03300;
Sheng et al., HybridFlow, arXiv:2409.19256, table 2 (bytes on shared GPUs); Fu et al., AReaL,
arXiv:2505.24298 (bounded staleness).
"""

from __future__ import annotations

from labkit import arguments
from labkit.calc.memory.kv_cache import checked_itemsize
from labkit.calc.memory.model_state import Recipe, model_state_bytes
from labkit.calc.result import Result, number_of, total

ALGORITHMS = ("ppo", "grpo")
PLANS = ("needed", "everything")


def rl_memory_bytes(
    num_params: float | Result,
    algorithm: str,
    *,
    recipe: Recipe | str = "zero_paper",
    kl: bool = True,
    reward_model: bool = True,
    generator_apart: bool = False,
    itemsize: float = 2,
) -> Result:
    """Return the bytes of all models that a run holds, over all ranks, by part.

    num_params: of the policy; the others have as many. algorithm: "ppo" trains a critic, "grpo"
    has none. recipe: states of a trained parameter. kl: whether a reference model is held for a KL
    term. reward_model: False where a program verifies the answers. generator_apart: whether the
    generator has its own copy of the weights. itemsize: bytes of a frozen parameter.
    rl_memory_bytes(7e9, "ppo").to("GB") == 252, and len(rl_memory_bytes(7e9, "ppo").parts) == 4
    ValueError for another algorithm.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r:.60}: give one of {', '.join(ALGORITHMS)}")
    num = number_of(num_params, "num_params", "parameters")
    arguments.number("num_params", num, "a policy has parameters", above=0)
    trained = model_state_bytes(num, recipe)
    frozen = num * checked_itemsize(itemsize)
    held = {"policy": trained}
    if algorithm == "ppo":
        held["critic"] = trained
    for name, is_held in (
        ("reference", kl),
        ("reward model", reward_model),
        ("generator", generator_apart),
    ):
        if is_held:
            held[name] = Result(frozen, "bytes", name, "w N", f"{itemsize:g} * {num:.4g}")
    return total(
        f"models of {algorithm.upper()}",
        held,
        formula=" + ".join("K N" if part in ("policy", "critic") else "w N" for part in held),
        convention=f"{len(held)} models of one size, over all ranks; activations and caches of "
        "keys and values are not in it",
        source="Shao et al., DeepSeekMath, arXiv:2402.03300, figure 4",
    )


def weight_update_bytes(
    num_params: float | Result,
    serve_tp: int,
    plan: str = "needed",
    *,
    itemsize: float = 2,
    shared_ranks: int | None = None,
) -> Result:
    """Return the bytes that one rank of a generator receives when the weights are updated.

    num_params: parameters that have changed: all of them, or those of an adapter. serve_tp: ranks
    over which a replica splits them. plan: "needed", or "everything" to each rank. itemsize: bytes
    of a parameter that travels. shared_ranks: ranks of a trainer on the same GPUs, each of which
    has an equal shard inside what it serves; None where the trainer has other GPUs. Replicas do not
    appear: each of their ranks receives this much.
    weight_update_bytes(8e9, 4).to("GB") == 4
    ValueError for another plan, and for more ranks that serve than train on shared GPUs.
    """
    if plan not in PLANS:
        raise ValueError(f"plan={plan!r:.60}: give one of {', '.join(PLANS)}")
    num = number_of(num_params, "num_params", "parameters")
    arguments.number("num_params", num, "0 or more have changed", least=0)
    serve_tp = arguments.counted("serve_tp", serve_tp)
    held = 0.0
    if shared_ranks is not None:
        held = 1 / arguments.counted("shared_ranks", shared_ranks)
        if shared_ranks < serve_tp:
            raise ValueError(
                f"shared_ranks={shared_ranks}: a replica has serve_tp={serve_tp} of these ranks; "
                "give as many or more"
            )
    wanted = 1 / serve_tp if plan == "needed" else 1.0
    share = "1/t" if plan == "needed" else "1"
    formula = f"({share} - 1/n) N w" if held else f"{share} N w"
    return Result(
        num * checked_itemsize(itemsize) * (wanted - held),
        "bytes",
        "received by a rank that generates",
        formula,
        f"({wanted:.4g} - {held:.4g}) * {num:.4g} * {itemsize:g}",
        convention="norms and biases, which each rank of t holds whole, are counted as split",
        source="Sheng et al., HybridFlow, arXiv:2409.19256, table 2",
    )


def rl_step_seconds(
    generate_s: float | Result,
    train_s: float | Result,
    staleness: int = 0,
    *,
    longest_s: float | Result = 0.0,
    update_s: float | Result = 0.0,
) -> Result:
    """Return the least mean time of a step: a batch generated, trained on, and the weights sent.

    generate_s: to generate a batch with every slot busy. train_s: to score it and train on it.
    staleness: versions by which the policy that generated may be behind the one that is updated; 0
    is synchronous, generation and training in turns. longest_s: from a batch's start to its last
    answer, if that is longer than generate_s: one long answer keeps few slots busy. Slots that are
    free generate the next batches, if staleness allows. update_s: when both sides wait for weights.
    rl_step_seconds(60, 40) == 100, rl_step_seconds(60, 40, 1) == 60,
    rl_step_seconds(60, 40, 1, longest_s=100) == 70
    """
    times = {
        "generate_s": number_of(generate_s, "generate_s", "seconds"),
        "train_s": number_of(train_s, "train_s", "seconds"),
        "longest_s": number_of(longest_s, "longest_s", "seconds"),
        "update_s": number_of(update_s, "update_s", "seconds"),
    }
    for name, seconds in times.items():
        arguments.number(name, seconds, "0 or more seconds", least=0)
    staleness = arguments.whole("staleness", staleness, "0 or more versions", least=0)
    g, t, longest, u = times.values()
    in_turn = max(g, longest) + t
    parts = {
        "generator": Result(g, "seconds", "generator", "g"),
        "trainer": Result(t, "seconds", "trainer", "t"),
        "waiting for a version": Result(
            in_turn / (staleness + 1),
            "seconds",
            "waiting for a version",
            "(L + t) / (eta + 1)",
            f"({max(g, longest):g} + {t:g}) / {staleness + 1}",
        ),
        "weights": Result(u, "seconds", "weights", "u"),
    }
    return Result(
        max(g, t, in_turn / (staleness + 1)) + u,
        "seconds",
        "time of a step",
        "max(g, t, (L + t) / (eta + 1)) + u",
        f"max({g:g}, {t:g}, {in_turn / (staleness + 1):g}) + {u:g}",
        convention="equal batches; neither side has other overheads",
        source="Fu et al., AReaL, arXiv:2505.24298",
        parts=parts,
    )
