"""Drills on fine-tuning: states and traffic of LoRA."""

from labkit import calc
from labkit.interview.drills.drill import amounts, billions, drill
from labkit.interview.drills.question import Solution, Trap

_FROZEN = calc.Recipe(name="frozen", parameter_bytes=2, gradient_bytes=0)
_DRAWS = {
    "params": billions(3, 7, 8, 9, 13, 14, 27, 32, 34, 70, 72),
    "adapters": amounts("20 million", "40 million", "80 million", "160 million", "320 million"),
}


@drill(
    "ec-2",
    "Memory of LoRA",
    difficulty=2,
    notebook=None,
    prompt="LoRA trains {adapters} parameters of adapters beside {params} frozen ones in bf16. The "
    "adapters have bf16 parameters and gradients, a float32 master copy and Adam's two moments in "
    "float32. How much memory do weights and training states take, without activations?",
    draws=_DRAWS,
    unit="GB",
    digits=3,
    between=("10 GB", "200 GB"),
)
def lora_states(params: float, adapters: float) -> Solution:
    """2 N frozen, 16 a trained one."""
    frozen = calc.model_state_bytes(params, _FROZEN)
    trained = calc.model_state_bytes(adapters, "zero_paper")
    full = calc.model_state_bytes(params, "zero_paper")
    return Solution(
        frozen + trained,
        [
            f"Frozen: 2 B x {params / 1e9:g}B = {frozen}; no gradients, no moments.",
            f"Trained: {calc.RECIPES['zero_paper'].bytes_per_parameter:g} B x "
            f"{adapters / 1e6:g}M = {trained}.",
            f"Together {frozen + trained}; training everything would take {full}.",
        ],
        [
            Trap("training everything", full, "Frozen parameters have no gradient and no moments."),
            Trap("the adapters alone", trained, "The frozen weights are in memory, too."),
            Trap(
                "gradients of the frozen weights",
                float(frozen) * 2 + float(trained),
                "Backward goes through frozen weights without a gradient of theirs being kept.",
            ),
        ],
    )


@drill(
    "ec-2",
    "Traffic of LoRA",
    difficulty=2,
    notebook=None,
    prompt="{n} GPUs train LoRA with DDP: {adapters} parameters of adapters, {params} frozen. "
    "Gradients travel in bf16 on a ring. How much does each GPU send in a step?",
    draws={**_DRAWS, "n": (4, 8, 16, 32)},
    unit="MB",
    digits=3,
    between=("20 MB", "2 GB"),
)
def lora_traffic(n: int, params: float, adapters: float) -> Solution:
    """2(n-1)/n of the adapters' gradients."""
    sent = calc.step_traffic_bytes("ddp", adapters, n)
    full = calc.step_traffic_bytes("ddp", params, n)
    return Solution(
        sent,
        [
            "Only parameters that are trained have gradients to reduce.",
            f"2 B x {adapters / 1e6:g}M, of that 2 x {n - 1}/{n}: {sent}.",
            f"Training everything would send {full}.",
        ],
        [
            Trap(
                "all gradients",
                full,
                "Frozen parameters have no gradients, so nothing of them is reduced.",
            ),
            Trap(
                "one phase instead of two",
                float(sent) / 2,
                "An all-reduce is a reduce-scatter and an all-gather.",
            ),
            Trap(
                "n instead of n - 1",
                float(sent) * n / (n - 1),
                "A rank sends 2(n - 1)/n of the gradients.",
            ),
            Trap("float32 gradients", float(sent) * 2, "A bf16 number has 2 bytes."),
        ],
    )
