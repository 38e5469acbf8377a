"""Drills on what RL of a language model holds and sends: models, weight updates, adapters."""

from typing import Any

from labkit import calc
from labkit.interview.drills.drill import Shown, amounts, billions, drill
from labkit.interview.drills.question import Solution, Trap

_POLICIES = billions(1.5, 3, 7, 8, 14, 32, 70)
_TRAINED, _FROZEN = calc.RECIPES["zero_paper"].bytes_per_parameter, 2
_SETUPS = (
    Shown(("ppo", True, True), "PPO with a critic, a reference model and a reward model"),
    Shown(("ppo", True, False), "PPO with a critic and a reference model; a program gives rewards"),
    Shown(("grpo", True, True), "GRPO with a reference model and a reward model"),
    Shown(("grpo", True, False), "GRPO with a reference model; a program gives rewards"),
)


def _held(params: float, setup: tuple[str, bool, bool], **more: Any) -> calc.Result:
    algorithm, kl, reward_model = setup
    return calc.rl_memory_bytes(params, algorithm, kl=kl, reward_model=reward_model, **more)


@drill(
    "rl-1",
    "Models that a run holds",
    difficulty=1,
    notebook="26_rl_of_a_language_model",
    prompt="{setup}, all of {params} parameters. What is trained has 16 bytes a parameter (mixed "
    "precision and Adam), what is frozen 2. The generator shares the policy's weights. How much "
    "memory do weights and training states take on all ranks together, without activations and "
    "caches?",
    draws={"params": _POLICIES, "setup": _SETUPS},
    unit="GB",
    digits=3,
    between=("20 GB", "3 TB"),
)
def models_held(params: float, setup: tuple[str, bool, bool]) -> Solution:
    """16 N for the policy and for a critic, 2 N for each frozen model."""
    held = _held(params, setup)
    names = ", ".join(held.parts)
    trained = [name for name in held.parts if name in ("policy", "critic")]
    frozen = len(held.parts) - len(trained)
    other = calc.rl_memory_bytes(params, "grpo" if setup[0] == "ppo" else "ppo", kl=setup[1],
                                 reward_model=setup[2])  # fmt: skip
    return Solution(
        held,
        [
            f"Held: {names}.",
            f"Trained: {' and '.join(trained)}, {_TRAINED:g} B x {params / 1e9:g}B = "
            f"{held['policy']} each.",
            f"Frozen: {frozen}, of {_FROZEN * params / 1e9:g} GB each.",
            f"Together {held.to('GB'):,.4g} GB.",
        ],
        [
            Trap(
                "a critic too many, or none",
                other,
                "PPO trains a critic, with states as large as the policy's. GRPO has none: the "
                "mean reward of a group is its baseline.",
            ),
            Trap(
                "every model trained",
                len(held.parts) * _TRAINED * params,
                "Reference and reward model are frozen: no gradients, no optimizer states.",
            ),
            Trap(
                "weights alone",
                len(held.parts) * _FROZEN * params,
                "A trained model also has gradients, a master copy and two moments.",
            ),
            Trap("the policy alone", held["policy"], "The other models are in memory, too."),
        ],
    )


_CHANGES = (
    Shown(
        (True, True, True),
        "PPO holds policy, critic, reference and reward model, all of one size. You change to "
        "GRPO, and keep reference and reward model",
    ),
    Shown(
        (True, False, False),
        "PPO holds policy, critic, reference and reward model, all of one size. You change to "
        "GRPO without KL term, with a program that verifies answers",
    ),
    Shown(
        (False, True, False),
        "PPO holds policy, critic and reference, all of one size, and a program verifies answers. "
        "You change to GRPO, and keep the reference",
    ),
    Shown(
        (False, False, False),
        "PPO holds policy, critic and reference, all of one size, and a program verifies answers. "
        "You change to GRPO without KL term",
    ),
)


@drill(
    "rl-1",
    "Share of PPO's memory that GRPO saves",
    difficulty=2,
    notebook="26_rl_of_a_language_model",
    prompt="{change}. Trained parameters have {trained} bytes each, frozen ones {frozen}. Which "
    "share of the memory for weights and training states do you save?",
    draws={"change": _CHANGES, "trained": (8, 12, 14, 16, 18), "frozen": (1, 2, 4)},
    unit="%",
    digits=3,
    between=("30%", "70%"),
)
def grpo_saving(change: tuple[bool, bool, bool], trained: int, frozen: int) -> Solution:
    """Return the critic's share, and that of the frozen models which go with it."""
    recipe = calc.Recipe(name="trained", parameter_bytes=trained, gradient_bytes=0)
    has_reward_model, kl, reward_model = change
    before, after = (
        calc.rl_memory_bytes(1, algorithm, recipe=recipe, itemsize=frozen, kl=kl, reward_model=has)
        for algorithm, kl, has in (("ppo", True, has_reward_model), ("grpo", kl, reward_model))
    )
    ppo, grpo = float(before), float(after)
    num, left = len(before.parts), len(after.parts)
    return Solution(
        1 - grpo / ppo,
        [
            f"PPO: {', '.join(before.parts)}: {ppo:g} bytes a parameter.",
            f"GRPO here: {', '.join(after.parts)}: {grpo:g} bytes a parameter.",
            f"1 - {grpo:g} / {ppo:g} = {1 - grpo / ppo:.1%}.",
        ],
        [
            Trap("the share that is left", grpo / ppo, "That is what GRPO still holds."),
            Trap(
                "a share of the number of models",
                1 - left / num,
                "Models are not equally large: a trained one has gradients and optimizer states.",
            ),
            Trap(
                "exactly half",
                0.5,
                "Half of what is trained goes. Of the frozen models another share goes, or none.",
            ),
        ],
    )


@drill(
    "rl-3",
    "Bytes of a weight update",
    difficulty=1,
    notebook="26_rl_of_a_language_model",
    prompt="A trainer sends new weights of {params} parameters in {itemsize} to "
    "{replicas} replicas of the model on other GPUs. Each replica splits the weights over {t} "
    "ranks by tensor parallelism. Each rank receives only what it serves. How many bytes does one "
    "rank receive?",
    draws={
        "params": _POLICIES,
        "itemsize": (Shown(1, "fp8"), Shown(2, "bf16")),
        "replicas": (2, 4, 8, 16),
        "t": (2, 4, 8),
    },
    unit="GB",
    digits=3,
    between=("0.3 GB", "80 GB"),
)
def update_bytes(params: float, itemsize: int, replicas: int, t: int) -> Solution:
    """Return N w / t, whatever the number of replicas."""
    needed = calc.weight_update_bytes(params, t, itemsize=itemsize)
    everything = calc.weight_update_bytes(params, t, "everything", itemsize=itemsize)
    return Solution(
        needed,
        [
            f"All weights: {itemsize} B x {params / 1e9:g}B = {everything.to('GB'):.4g} GB.",
            f"A rank serves 1/{t} of them: {needed.to('GB'):.4g} GB.",
            f"All {replicas * t} ranks together receive {replicas} x {everything.to('GB'):.4g} GB.",
        ],
        [
            Trap(
                "everything to each rank",
                everything,
                f"That is a broadcast: {t} times what a rank serves.",
            ),
            Trap(
                "divided by all ranks",
                float(everything) / (replicas * t),
                "Each replica has all weights: only its own ranks split them.",
            ),
            Trap(
                "all ranks together",
                replicas * float(everything),
                "The question is about one rank.",
            ),
            Trap(
                "training states sent",
                _TRAINED * params / t,
                "A generator has no gradients, master copies or moments.",
            ),
        ],
    )


@drill(
    "rl-3",
    "A broadcast of everything",
    difficulty=2,
    notebook="26_rl_of_a_language_model",
    prompt="Weights of {params} parameters in bf16 go to {replicas} replicas of {t} ranks each. "
    "A broadcast brings all weights to every rank, and each rank drops what it does not serve. How "
    "many bytes that nobody needs do all ranks receive together?",
    draws={"params": _POLICIES, "replicas": (2, 4, 8, 16), "t": (2, 4, 8)},
    unit="GB",
    digits=3,
    between=("6 GB", "20 TB"),
)
def bytes_not_needed(params: float, replicas: int, t: int) -> Solution:
    """Return r (t - 1) N w."""
    ranks = replicas * t
    everything = ranks * float(calc.weight_update_bytes(params, t, "everything"))
    needed = ranks * float(calc.weight_update_bytes(params, t))
    wasted = everything - needed
    return Solution(
        wasted,
        [
            f"Broadcast: {ranks} ranks x 2 B x {params / 1e9:g}B = {everything / 1e9:,.5g} GB.",
            f"Needed: each replica once, {replicas} x {2 * params / 1e9:g} = {needed / 1e9:,.5g} "
            "GB.",
            f"Not needed: {everything / 1e9:,.5g} - {needed / 1e9:,.5g} = {wasted / 1e9:,.5g} GB.",
        ],
        [
            Trap("everything that is received", everything, "A part of it is served."),
            Trap("what is needed", needed, "That is the part that is served."),
            Trap(
                "one replica",
                wasted / replicas,
                "Each of the replicas receives as much.",
            ),
            Trap(
                "only one rank of all needs its weights",
                (ranks - 1) * 2 * params,
                "Each replica serves all weights once.",
            ),
        ],
    )


@drill(
    "rl-3",
    "An adapter sent instead of the model",
    difficulty=2,
    notebook="26_rl_of_a_language_model",
    prompt="GRPO trains a LoRA of {rank} on all linear layers of {model}, in bf16. After each "
    "step the trainer sends the adapter to a generator on one GPU, over {link}. How long does the "
    "update take at that bandwidth?",
    draws={
        "rank": [Shown(rank, f"rank {rank}") for rank in (8, 16, 32, 64, 128)],
        "model": [
            Shown(name, title)
            for name, title in (
                ("llama2-7b", "Llama 2 7B"),
                ("llama3-8b", "Llama 3 8B"),
                ("llama3-70b", "Llama 3 70B"),
            )
        ],
        "link": amounts("5 GB/s", "10 GB/s", "12.5 GB/s", "25 GB/s", "50 GB/s"),
    },
    unit="ms",
    between=("0.5 ms", "1 s"),
)
def adapter_update(rank: int, model: str, link: float) -> Solution:
    """Return 2 r (in + out) over all linear layers, over the bandwidth."""
    adapter = calc.lora_parameters(model, rank, "all-linear")
    sent = calc.weight_update_bytes(adapter, 1)
    whole = calc.weight_update_bytes(calc.num_parameters(model), 1)
    one = calc.lora_parameters(model, rank)
    return Solution(
        float(sent) / link,
        [
            f"r (in + out) over all linear layers: {float(adapter) / 1e6:.4g} million parameters.",
            f"2 B each: {sent.to('MB'):.4g} MB; the whole model would be {whole.to('GB'):.4g} GB.",
            f"{sent.to('MB'):.4g} MB / {link / 1e9:g} GB/s = {float(sent) / link * 1e3:.4g} ms.",
        ],
        [
            Trap(
                "the whole model",
                float(whole) / link,
                "The frozen weights are at the generator already, and have not changed.",
            ),
            Trap(
                "queries and values only",
                2 * float(one) / link,
                "All linear layers have an adapter here.",
            ),
            Trap("float32", 2 * float(sent) / link, "A number in bf16 has 2 bytes."),
        ],
    )
