"""Models held, weight updates and steps of RL, against values by hand and published figures."""

import pytest

from labkit import calc

N = 7e9


def parts(of):
    return {name: each.to("GB") for name, each in of.parts.items()}


def test_ppo_holds_four_models_and_grpo_three():
    """16 bytes of a trained parameter, 2 of a frozen one."""
    ppo, grpo = calc.rl_memory_bytes(N, "ppo"), calc.rl_memory_bytes(N, "grpo")
    frozen = {"reference": 14, "reward model": 14}
    assert parts(ppo) == {"policy": 112, "critic": 112} | frozen
    assert parts(grpo) == {"policy": 112} | frozen
    assert ppo == 36 * N and grpo == 20 * N


def test_a_program_that_verifies_and_no_kl_leave_the_policy_alone():
    least = calc.rl_memory_bytes(N, "grpo", kl=False, reward_model=False)
    assert parts(least) == {"policy": 112}
    apart = calc.rl_memory_bytes(N, "grpo", kl=False, reward_model=False, generator_apart=True)
    assert parts(apart) == {"policy": 112, "generator": 14}
    recipe = calc.rl_memory_bytes(N, "ppo", recipe="megatron_bf16", itemsize=1)
    assert recipe == (18 + 18 + 1 + 1) * N


def test_an_update_brings_each_rank_the_part_that_it_serves():
    needed = calc.weight_update_bytes(8e9, 4)
    everything = calc.weight_update_bytes(8e9, 4, "everything")
    assert needed.to("GB") == 4 and everything.to("GB") == 16
    adapter = calc.lora_parameters("llama3-8b", 16)
    assert calc.weight_update_bytes(adapter, 1) == 2 * float(adapter)
    assert calc.weight_update_bytes(8e9, 4, itemsize=1).to("GB") == 2  # in 8 bits


@pytest.mark.parametrize(("t", "p", "d", "serve"), [(8, 1, 2, 2), (4, 2, 2, 4), (8, 4, 1, 8)])
def test_bytes_on_shared_gpus_are_those_of_hybridflow(t, p, d, serve):
    """arXiv:2409.19256, table 2: what a GPU receives, of a model of M bytes."""
    M = 2 * N
    hybridflow = (t * p - serve) / (serve * t * p) * M
    needed = calc.weight_update_bytes(N, serve, shared_ranks=t * p)
    assert float(needed) == pytest.approx(hybridflow)
    deepspeed_chat = (t * p * d - 1) / (t * p * d) * M
    everything = calc.weight_update_bytes(N, serve, "everything", shared_ranks=t * p * d)
    assert float(everything) == pytest.approx(deepspeed_chat)


def replayed(g, t, longest, u, staleness, num_batches=400):
    """Seconds of a step, from a list of events: when each version is there."""
    versions, start, free, trained = [0.0], -g, 0.0, 0.0
    for batch in range(num_batches):
        may_start = versions[max(batch - staleness, 0)]
        start = max(may_start, start + g)
        ready = start + max(g, longest)
        trained = max(ready, free) + t
        versions.append(trained)
        free = trained
    return (versions[-1] - versions[num_batches // 2]) / (num_batches - num_batches // 2) + u


@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
@pytest.mark.parametrize("times", [(60, 40, 0), (40, 60, 0), (60, 40, 100), (20, 30, 300)])
def test_a_step_lasts_as_long_as_in_a_list_of_events(times, staleness):
    g, t, longest = times
    step = calc.rl_step_seconds(g, t, staleness, longest_s=longest, update_s=5)
    assert float(step) == pytest.approx(replayed(g, t, longest, 5, staleness), rel=0.02)


# verl's documentation, "One Step Off Policy Async Trainer" and "Fully Async Policy Trainer"
# (commits e55d143 and 2147009): seconds to generate, to score and train, bound, measured step.
PUBLISHED = [
    (321, 88 + 286, 0, 749),
    (207, 119 + 344, 0, 699),
    (357.41, 107.71 + 313.81, 0, 790.10),
    (150.72, 70.26 + 133.41, 0, 365.28),
    (177.85, 53.92 + 113.81, 0, 356.30),
    (458, 108 + 337, 1, 520),
    (501, 120 + 347, 1, 566),
]


@pytest.mark.parametrize(("generate_s", "train_s", "staleness", "measured_s"), PUBLISHED)
def test_published_steps_last_what_the_formula_says_and_a_little_more(
    generate_s, train_s, staleness, measured_s
):
    least = float(calc.rl_step_seconds(generate_s, train_s, staleness))
    assert 0.87 * measured_s < least < measured_s


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: calc.rl_memory_bytes(N, "dpo"), "algorithm='dpo': give one of ppo, grpo"),
        (lambda: calc.rl_memory_bytes(0, "ppo"), "num_params=0"),
        (lambda: calc.weight_update_bytes(N, 4, "all"), "plan='all'"),
        (lambda: calc.weight_update_bytes(N, 8, shared_ranks=4), "shared_ranks=4"),
        (lambda: calc.rl_step_seconds(1, 1, -1), "staleness=-1"),
        (lambda: calc.rl_step_seconds(1, -1), "train_s=-1"),
    ],
)
def test_wrong_arguments_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
