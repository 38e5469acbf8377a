"""Memory of one GPU by part, against sums by hand, and advice when it does not fit."""

import dataclasses
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit import calc
from labkit.calc import TrainingSetup, changes_that_fit, footprint, footprints
from labkit.calc.memory.fit import STEPS, smallest_change

L, D, H, F, V, T = 32, 4096, 32, 11008, 32000, 4096  # llama2-7b
N = 6_738_415_616
LLAMA = TrainingSetup(model="llama2-7b")
LLAMA_70B = TrainingSetup(model="llama2-70b")


def parts(setup, stage=None):
    return {name: float(part) for name, part in footprint(setup, stage).parts.items()}


def test_on_one_gpu_it_is_states_activations_and_logits():
    per_token = 2 * 2 * D + 2 * 2 * D + 6 * D + 4 * H + 2 * D + 8 * F
    assert parts(LLAMA) == {
        "parameters": 2 * N,
        "gradients": 2 * N,
        "master": 4 * N,
        "moments": 8 * N,
        "activations": L * T * per_token,
        "head inputs": T * 2 * 2 * D,
        "logits and loss": T * V * (2 + 4),
        "gradients of the loss": T * V * (4 + 4),
    }
    assert footprint(LLAMA) == sum(parts(LLAMA).values())


def test_tensor_and_pipeline_parallelism_cut_the_parameters_by_their_product():
    for tp, pp in ((2, 1), (1, 4), (8, 4)):
        cut = dataclasses.replace(LLAMA, tp=tp, pp=pp)
        for each in footprints(cut):
            assert each["parameters"] == 2 * -(-N // (tp * pp))
            assert each["moments"] == 8 * -(-N // (tp * pp))


def test_of_parameters_that_do_not_divide_the_largest_part_counts():
    odd = TrainingSetup(model="gpt2", pp=5)
    assert footprint(odd)["parameters"] == 2 * -(-124_439_808 // 5)


def test_zero_shards_over_data_parallel_ranks_only():
    cut = dataclasses.replace(LLAMA, zero=1, dp=16, tp=2)
    assert parts(cut)["parameters"] == 2 * N // 2
    assert parts(cut)["moments"] == 8 * -(-N // 2 // 16)


def test_the_first_stage_holds_a_microbatch_for_every_stage_and_the_last_one_the_logits():
    stages = footprints(dataclasses.replace(LLAMA, pp=4))
    one = float(footprint(LLAMA)["activations"]) / 4
    assert [float(each["activations"]) / one for each in stages] == [4, 3, 2, 1]
    for of_the_head in ("head inputs", "logits and loss", "gradients of the loss"):
        assert [of_the_head in each.parts for each in stages] == [False, False, False, True]
    assert footprint(dataclasses.replace(LLAMA, pp=4)) == max(stages) == stages[0]


def test_of_a_small_model_the_last_stage_with_its_logits_may_be_the_fullest():
    gpt2 = TrainingSetup(model="gpt2", pp=4, recompute="full")
    assert footprint(gpt2) == footprint(gpt2, stage=3) > footprint(gpt2, stage=0)


def test_layers_that_do_not_divide_make_the_first_stages_larger():
    stages = footprints(dataclasses.replace(LLAMA, pp=5))  # 7 7 6 6 6 layers
    per_layer = float(footprint(LLAMA)["activations"]) / L
    assert [float(each["activations"]) for each in stages] == [
        pytest.approx(layers * in_flight * per_layer)
        for layers, in_flight in zip((7, 7, 6, 6, 6), (5, 4, 3, 2, 1))
    ]


def test_of_full_recomputation_every_layers_input_stays_and_one_layer_at_a_time_comes_back():
    whole = float(footprint(LLAMA)["activations"])
    full = parts(dataclasses.replace(LLAMA, recompute="full"))
    assert full["activations"] == L * T * 2 * D
    assert full["recomputed layer"] == pytest.approx(whole / L - T * 2 * D)


def test_selective_recomputation_drops_the_scores_and_with_flash_there_are_none():
    plain = dataclasses.replace(LLAMA, flash=False)
    selective = dataclasses.replace(plain, recompute="selective")
    scores = L * T * H * T * 2
    assert parts(plain)["activations"] - parts(selective)["activations"] == scores
    assert parts(selective)["recomputed layer"] == scores / L
    with_flash = dataclasses.replace(LLAMA, recompute="selective")
    assert parts(with_flash) == parts(LLAMA)


LAYER = 4 * D * D + 3 * D * F + 2 * D


def test_ranks_cut_the_inputs_of_the_head_with_the_sequence_and_the_logits_with_the_vocabulary():
    for is_parallel, cut in ((False, 1), (True, 4)):
        four = parts(dataclasses.replace(LLAMA, tp=4, sequence_parallel=is_parallel))
        assert four["head inputs"] == parts(LLAMA)["head inputs"] / cut
        assert four["gradients of the loss"] == parts(LLAMA)["gradients of the loss"] / 4


def test_zero_2_has_the_gradient_of_one_unit_whole_and_zero_3_two_layers_and_the_rest():
    table, norm = V * D, D
    for zero, size in ((0, 0), (1, 0), (2, 2 * LAYER), (3, 4 * (2 * LAYER + 2 * table + norm))):
        sharded = dataclasses.replace(LLAMA, zero=zero, dp=8)
        assert parts(sharded).get("whole units", 0) == size
    assert "whole units" not in parts(dataclasses.replace(LLAMA, zero=3, dp=1))
    one, cut = (parts(dataclasses.replace(LLAMA, zero=3, dp=8, tp=tp)) for tp in (1, 2))
    assert cut["whole units"] == pytest.approx(one["whole units"] / 2, rel=0.001), "but for norms"
    # In a small model with a large vocabulary the embedding table is the largest unit.
    small = TrainingSetup(model="llama3.2-1b", zero=2, dp=8)
    assert parts(small)["whole units"] == 2 * 128256 * 2048


def test_a_tied_head_is_the_embedding_only_where_both_are_on_one_stage():
    gpt2 = TrainingSetup(model="gpt2", zero=3, dp=8)
    d, table = 768, 50257 * 768
    layer, norm = 12 * d * d + 13 * d, 2 * d  # with the biases of four linear layers and two norms
    assert parts(gpt2)["whole units"] == 4 * (2 * layer + table + 1024 * d + norm)
    stages = footprints(dataclasses.replace(gpt2, pp=3, reshard_after_forward=True))
    rests = [table + 1024 * d, 0, table + norm]
    assert [each["whole units"] for each in stages] == [4 * (2 * layer + r) for r in rests]


def test_a_stage_of_one_layer_has_no_second_one_whole():
    alone = dataclasses.replace(LLAMA, pp=32, zero=3, dp=2, reshard_after_forward=True)
    assert parts(alone, 5)["whole units"] == 4 * LAYER
    assert parts(dataclasses.replace(alone, tp=4), 5)["whole units"] == LAYER


@pytest.mark.parametrize(
    ("recipe", "itemsize"), [("zero_paper", 2), ("amp", 2), ("fp32", 4), ("adam_8bit", 2)]
)
def test_activations_have_the_size_that_the_recipe_computes_in(recipe, itemsize):
    setup = dataclasses.replace(LLAMA, recipe=recipe, recompute="full")
    assert parts(setup)["activations"] == L * T * itemsize * D


def own(**sizes):
    recipe = {"parameter_bytes": 2, "gradient_bytes": 2, "moment_bytes": (4, 4)} | sizes
    return dataclasses.replace(LLAMA, recipe=calc.Recipe(name="own", **recipe), recompute="full")


@pytest.mark.parametrize(
    ("sizes", "itemsize", "said"),
    [
        ({}, 2, "; 2 B activations without"),
        ({"parameter_bytes": 1}, 2, "2 B activations, .* 1 B"),
        ({"parameter_bytes": 4, "cast_bytes": 1}, 2, " 1 B"),
        ({"parameter_bytes": 0}, 2, " 0 B"),
        ({"activation_bytes": 1}, 1, "1 B activations, as the recipe"),
        ({"parameter_bytes": 0.5, "activation_bytes": 2}, 2, "2 B activations, as the recipe"),
    ],
)
def test_activations_have_2_bytes_or_more_unless_the_recipe_says_so(sizes, itemsize, said):
    setup = own(**sizes)
    assert parts(setup)["activations"] == L * T * itemsize * D
    assert re.search(said, footprint(setup).convention)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"parameter_bytes": 0.5}, "recipe 'own' has parameter_bytes=0.5"),
        ({"parameter_bytes": 2.5}, "parameter_bytes=2.5"),
        ({"cast_bytes": 1.5}, "recipe 'own' has cast_bytes=1.5"),
        ({"activation_bytes": 1.5}, "^activation_bytes=1.5"),
    ],
)
def test_a_fraction_of_a_byte_is_no_number_of_an_activation(sizes, said):
    with pytest.raises(ValueError, match=said):
        footprint(own(**sizes))


def test_autocast_keeps_a_copy_in_16_bits():
    assert parts(dataclasses.replace(LLAMA, recipe="amp"))["casts"] == 2 * N
    assert "casts" not in parts(LLAMA)
    shards = parts(dataclasses.replace(LLAMA, recipe="amp", zero=3, dp=8))
    assert "casts" not in shards and shards["whole units"] == 6 * (2 * LAYER + 2 * V * D + D)


def test_sequences_and_microbatches_multiply_what_is_kept():
    twice = dataclasses.replace(LLAMA, microbatch=2)
    assert parts(twice)["activations"] == 2 * parts(LLAMA)["activations"]
    half = dataclasses.replace(LLAMA, sequence=T // 2)
    assert parts(half)["logits and loss"] == parts(LLAMA)["logits and loss"] / 2


def test_a_footprint_explains_itself():
    setup = dataclasses.replace(LLAMA, pp=2, dp=2, zero=3, recompute="full")
    said = footprint(setup, stage=0).explain()
    for words in ("one GPU of 4, stage 0 of 2", "2 in flight", "16 layers", "N/(t p)", "1F1B"):
        assert words in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pp": 33}, "pp=33 stages for 32 layers"),
        ({"tp": 0}, "tp=0"),
        ({"model": "llama9"}, "none of gpt2"),
        ({"recipe": "magic"}, "none of zero_paper"),
        ({"zero": 4}, "zero=4"),
        ({"tp": 3}, "tp=3 .* 32 heads; give 1, 2, 4, 8, 16 or 32$"),
        ({"recompute": "some"}, "some"),
        ({"microbatch": 0}, "0"),
        ({"model": "mixtral-8x7b"}, "experts"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        footprint(dataclasses.replace(LLAMA, **wrong))


def test_a_stage_that_is_none_is_refused():
    with pytest.raises(ValueError, match="stage=4"):
        footprint(dataclasses.replace(LLAMA, pp=4), stage=4)


@pytest.mark.parametrize("count", ["dp", "tp", "pp", "microbatch", "sequence"])
def test_counts_are_whole_and_may_come_as_floats(count):
    setup = dataclasses.replace(LLAMA, **{count: 2.0})
    assert setup == dataclasses.replace(LLAMA, **{count: 2})
    assert type(getattr(setup, count)) is int and type(setup.num_gpus) is int
    for wrong in (2.5, 0):
        with pytest.raises(ValueError, match=f"{count}={wrong}"):
            dataclasses.replace(LLAMA, **{count: wrong})


@pytest.mark.parametrize(
    "call",
    [
        footprint,
        footprints,
        lambda setup: smallest_change(setup, 80e9),
        lambda setup: changes_that_fit(setup, 80e9),
    ],
)
def test_the_name_of_a_model_is_no_setup(call):
    with pytest.raises(TypeError, match="setup='llama2-7b'"):
        call("llama2-7b")


# --- what to change ------------------------------------------------------------------------------


def changed(setup, capacity):
    change = smallest_change(setup, capacity)
    return change and (change.knob, change.before, change.after)


def test_what_is_free_comes_first():
    gpt2 = TrainingSetup(model="gpt2", microbatch=32, flash=False)
    assert changed(gpt2, 40e9) == ("flash", False, True)


def test_a_level_of_zero_is_raised_no_further_than_is_needed():
    eight = dataclasses.replace(LLAMA, dp=8, recompute="full")
    assert footprint(eight) > 80e9
    assert changed(eight, 80e9) == ("zero", 0, 1)
    assert changed(eight, 24e9) == ("zero", 0, 3)


def test_activations_that_are_too_many_are_halved_or_computed_again():
    many = dataclasses.replace(LLAMA, dp=64, zero=3, microbatch=4)
    assert changed(many, 80e9) == ("microbatch", 4, 2)
    long = dataclasses.replace(LLAMA, dp=64, zero=3, sequence=16384)
    assert changed(long, 80e9) == ("recompute", "none", "full")


def test_more_gpus_come_last_and_only_as_many_as_are_needed():
    few = dataclasses.replace(LLAMA, dp=2, zero=3, recompute="full")
    assert changed(few, 40e9) == ("dp", 2, 4)
    alone = dataclasses.replace(LLAMA, recompute="full")
    assert changed(alone, 80e9) == ("tp", 1, 2)
    assert smallest_change(alone, 80e9).setup.num_gpus == 2


def test_where_no_single_change_is_enough_several_are_named():
    assert smallest_change(LLAMA_70B, 80e9) is None
    several = changes_that_fit(LLAMA_70B, 80e9)
    assert len(several) > 1
    assert several[-1].footprint <= 80e9
    # and none of them is one too many
    for left_out in several:
        others = {each.knob: each.after for each in several if each is not left_out}
        assert footprint(dataclasses.replace(LLAMA_70B, **others)) > 80e9


def test_zero_and_the_ranks_it_shards_over_come_together_before_tensor_parallelism():
    # Neither saves anything by itself: one rank has nothing to shard, and two hold the same.
    several = changes_that_fit(LLAMA, 80e9)
    assert [str(each) for each in several] == [
        "zero: 0 -> 1",
        "recompute: none -> full",
        "dp: 1 -> 2",
    ]
    assert several[-1].footprint == footprint(several[-1].setup) <= 80e9
    assert changed(LLAMA, 80e9) == ("tp", 1, 2), "the only single one"


def test_where_nothing_but_data_parallelism_can_cut_it_is_found():
    wide = calc.ModelConfig(layers=1, hidden=16384, heads=1, vocab=50000, context=2048)
    setup = TrainingSetup(model=wide)
    several = changes_that_fit(setup, 30e9)
    assert [each.knob for each in several] == ["zero", "dp"]
    assert several[-1].footprint <= 30e9 < footprint(setup)


def test_what_costs_nothing_comes_before_what_costs_bytes():
    costs = [costs.startswith("nothing") for _, _, costs in STEPS]
    assert costs == sorted(costs, reverse=True)


def test_what_zero_3_costs_is_what_the_traffic_of_a_step_says_for_many_microbatches():
    (of_zero3,) = [costs for knob, values, costs in STEPS if (knob, values) == ("zero", (3,))]
    volumes = [calc.step_traffic_volume(s, microbatches=8) for s in ("zero3", "zero1")]
    assert volumes == [3 * 8, 2]
    assert of_zero3.startswith("3 times") and "zero 1 has 2" in of_zero3


def test_what_is_not_needed_in_the_end_is_taken_back():
    with_scores = dataclasses.replace(LLAMA, flash=False, zero=3, dp=8)
    several = changes_that_fit(with_scores, 35e9)  # flash is tried first, and does not help enough
    assert [str(each) for each in several] == ["recompute: none -> full"]


def test_what_fills_a_device_to_the_last_byte_fits():
    sharded = dataclasses.replace(LLAMA, zero=1, dp=2)
    exactly = float(footprint(dataclasses.replace(sharded, recompute="full")))
    one, two = (changes_that_fit(sharded, capacity) for capacity in (exactly, exactly - 1))
    assert [str(each) for each in one] == ["recompute: none -> full"]
    assert [str(each) for each in two] == ["zero: 1 -> 2", "recompute: none -> full"]
    assert changed(LLAMA, float(footprint(dataclasses.replace(LLAMA, tp=2)))) == ("tp", 1, 2)
    with pytest.raises(ValueError, match="it fits"):
        smallest_change(LLAMA, float(footprint(LLAMA)))


def test_of_a_device_that_is_too_small_for_anything_nothing_is_promised():
    assert changes_that_fit(LLAMA_70B, 1e8) == []
    assert smallest_change(LLAMA_70B, 1e8) is None


def test_what_fits_needs_no_change():
    gpt2 = TrainingSetup(model="gpt2")
    assert changes_that_fit(gpt2, 80e9) == []
    with pytest.raises(ValueError, match="it fits: .* GB of 80 GB"):
        smallest_change(gpt2, calc.amount("80 GB"))


@pytest.mark.parametrize("capacity", [0, calc.amount("3 s")])
def test_a_capacity_is_bytes(capacity):
    with pytest.raises((TypeError, ValueError), match="capacity"):
        smallest_change(LLAMA_70B, capacity)


def test_a_change_says_what_it_is_and_what_it_costs():
    change = smallest_change(dataclasses.replace(LLAMA, dp=8, recompute="full"), 80e9)
    assert str(change) == "zero: 0 -> 1"
    assert change.costs
    with_scores = TrainingSetup(model="gpt2", microbatch=32, flash=False)
    assert str(smallest_change(with_scores, 40e9)) == "flash: on"
    assert change.footprint == footprint(change.setup)


SETUPS = st.builds(
    TrainingSetup,
    model=st.sampled_from(["gpt2-xl", "llama2-7b", "llama3-70b", "gpt3-175b"]),
    recipe=st.sampled_from(["zero_paper", "megatron_bf16", "amp"]),
    zero=st.integers(0, 3),
    dp=st.sampled_from([1, 3, 8, 64]),
    tp=st.sampled_from([1, 2, 8]),
    pp=st.sampled_from([1, 2, 5]),
    microbatch=st.integers(1, 5),
    recompute=st.sampled_from(["none", "selective", "full"]),
    flash=st.booleans(),
    sequence_parallel=st.booleans(),
)


def valid(setup):
    try:
        return footprint(setup) > 0
    except ValueError:
        return False


@settings(max_examples=25)
@given(SETUPS.filter(valid), st.sampled_from([24e9, 40e9, 80e9, 141e9]))
def test_the_change_proposed_fits_and_no_cheaper_one_does(setup, capacity):
    if footprint(setup) <= capacity:
        return
    change = smallest_change(setup, capacity)
    if change is None:
        several = changes_that_fit(setup, capacity)
        assert not several or (several[-1].footprint <= capacity and len(several) > 1)
        return
    assert change.footprint == footprint(change.setup) <= capacity
    moved = {k for k in vars(setup) if getattr(setup, k) != getattr(change.setup, k)}
    assert moved == {change.knob}
    for knob, values, _ in STEPS:
        for value in values:
            if (knob, value) == (change.knob, change.after):
                return
            other = dataclasses.replace(setup, **{knob: value})
            is_a_step = value < setup.microbatch if knob == "microbatch" else True
            if is_a_step and valid(other):
                fits = footprint(other) <= capacity
                # A step back, such as zero 3 -> 1, never helps; a step on would have been taken.
                assert not fits
