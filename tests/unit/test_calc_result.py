"""A result: a number with a unit, which says how it came about."""

import copy
import pickle

import pytest

from labkit import calc
from labkit.calc.units import UNITS_OF

STATES = calc.model_state_bytes(7.5e9, "zero_paper", zero=1, dp=64)


def test_it_reads_in_every_unit_of_its_kind_and_in_no_other():
    assert STATES.to("GB") == 31.40625
    assert STATES.to("GiB") == pytest.approx(29.249, abs=1e-3)
    with pytest.raises(ValueError, match="bytes.* 'h'"):
        STATES.to("h")


def test_gb_and_gib_add_up_in_bytes():
    assert calc.amount("1 GB") + calc.amount("1 GiB") == 10**9 + 2**30
    assert str(calc.amount("80 GiB") - STATES) == "54.5 GB"
    assert calc.amount("80 GB") < calc.amount("80 GiB")


@pytest.mark.parametrize("other", [5, 5.0, calc.amount("5 s"), calc.num_parameters("gpt2")])
def test_bytes_do_not_add_to_what_has_another_unit_or_none(other):
    with pytest.raises(TypeError, match="31.4 GB"):
        STATES + other
    with pytest.raises(TypeError):
        STATES - other


def test_bytes_are_not_compared_with_seconds():
    with pytest.raises(TypeError, match="31.4 GB .* 5 s"):
        assert calc.amount("5 s") < STATES
    assert calc.amount("5 s") != calc.amount("5 B")


def test_it_is_multiplied_by_numbers_and_divided_by_its_like():
    assert 2 * STATES == STATES * 2 == 2 * 31_406_250_000
    assert STATES / 2 == 31_406_250_000 / 2
    assert STATES / calc.amount("31.40625 GB") == 1.0
    with pytest.raises(TypeError):
        STATES * STATES
    with pytest.raises(TypeError, match="31.4 GB .* 5 s"):
        STATES / calc.amount("5 s")


def test_its_parts_add_up_to_it_and_are_named():
    assert sum(STATES.parts.values()) == STATES
    assert STATES["moments"].to("MB") == 937.5
    with pytest.raises(KeyError, match="parameters, gradients, master, moments"):
        STATES["activations"]


def test_it_explains_itself():
    text = STATES.explain()
    for said in (
        "zero 1 = 31.4 GB (31,406,250,000 B)",
        "K_o N/d",
        "4 B * 7,500,000,000 / 64",
        "zero_paper: 16 B",
        "arXiv:1910.02054",
    ):
        assert said in text


@pytest.mark.parametrize(
    "result",
    [
        calc.num_parameters("gpt2"),
        calc.active_parameters("mixtral-8x7b"),
        STATES,
        calc.activation_bytes("gpt2", 1),
        calc.logits_bytes("gpt2", 1),
        calc.loss_gradient_bytes("gpt2", 1),
        calc.head_input_bytes("gpt2", 1),
        calc.kv_cache_bytes_per_token("gpt2"),
        calc.contiguous_cache_use([2], [3], 6),
        calc.paged_cache_use([2], [3], 2),
        calc.requests_that_fit("gpt2", "h100", 100),
        calc.pass_time("gpt2", "h100", 1),
        calc.compute_bound_batch("gpt2", "h100"),
        calc.chunk_delay("gpt2", "h100", 8, 100),
        calc.speculative_speedup(0.8, 4, 0.1),
        calc.flops_per_token("gpt2"),
        calc.training_flops(1e9, 1e9),
        calc.mfu(1000, 1e9, 1, 1e13),
        calc.training_days(1e9, 1e9, 8, 1e14),
        calc.bubble_fraction(4, 8),
        calc.step_traffic_bytes("zero3", 1e9, 8),
        calc.step_traffic_volume("zero3"),
        calc.checkpoint_interval(60, 3600),
        calc.lost_share(600, 60, 36000),
        calc.mean_time_between_interruptions(419, 54 * 24),
    ],
    ids=lambda result: result.name,
)
def test_every_result_says_how_it_came_about(result):
    assert result.name and result.substitution
    assert result.formula or result.parts or result.convention
    assert str(result) in result.explain()


def test_an_amount_needs_a_unit_that_is_known():
    assert calc.amount("5 GB/s").to("MB/s") == 5000
    with pytest.raises(ValueError, match="I don't know the unit"):
        calc.amount("5 parsec")


AMOUNTS = "3 B, 3 KB, 3 GiB, 3 GB/s, 3 ns, 3 ms, 3 s, 3, 1.5 min, 1.5 h, 33.9 days".split(", ")


@pytest.mark.parametrize("text", AMOUNTS)
def test_what_a_result_prints_is_read_as_an_amount_again(text):
    result = calc.amount(text)
    again = calc.amount(str(result))
    assert again.dimension == result.dimension
    assert float(again) == pytest.approx(float(result), rel=5e-3)


@pytest.mark.parametrize("dimension", ["bytes", "seconds", "bytes/s", ""])
def test_every_unit_that_a_result_is_read_in_may_be_typed(dimension):
    for unit, size in UNITS_OF[dimension].items():
        assert calc.amount(f"2 {unit}").to(unit) == pytest.approx(2)
        assert calc.amount(f"2 {unit}") == calc.Result(2 * size, dimension)


def test_it_travels_from_a_rank_and_is_copied_with_its_parts():
    for copied in (pickle.loads(pickle.dumps(STATES)), copy.deepcopy(STATES)):
        assert copied == STATES
        assert copied["moments"] == STATES["moments"]


def test_plain_numbers_add_up_and_a_boolean_is_none():
    assert calc.amount("3") + 1 == 1 + calc.amount("3") == 4
    assert calc.amount("3") - 1 == 2
    with pytest.raises(TypeError, match="True cannot be added"):
        calc.amount("3") + True


def test_a_sum_of_equals_has_two_parts():
    twice = calc.amount("1 GB") + calc.amount("1 GB")
    assert sum(twice.parts.values()) == twice


def test_a_dimension_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="dimension='meters'"):
        calc.Result(5, "meters")


def test_times_may_come_as_results_and_bytes_are_no_time():
    write, mtbf = calc.amount("1 min"), calc.amount("3 h")
    assert calc.checkpoint_interval(write, mtbf) == calc.checkpoint_interval(60, 3 * 3600)
    for call in (calc.checkpoint_interval, lambda w, m: calc.lost_share(600, w, m)):
        with pytest.raises(TypeError, match="mtbf_s=1 GB"):
            call(60, calc.amount("1 GB"))
        with pytest.raises(TypeError, match="mtbf_s='1 h'"):
            call(60, "1 h")


def test_more_than_all_time_cannot_be_lost():
    with pytest.raises(ValueError, match="50.5 times"):
        calc.lost_share(10_000, 5000, 100)


def test_mfu_takes_operations_and_neither_bytes_nor_parameters():
    num = calc.num_parameters("gpt2")
    six = calc.mfu(1e5, 6 * float(num), 8, 312e12)
    assert six == calc.mfu(1e5, calc.flops_per_token("gpt2", attention=False), 8, 312e12)
    for parameters in (num, 6 * num):  # nobody can tell whether the factor is in it
        with pytest.raises(TypeError, match="M parameters"):
            calc.mfu(1e5, parameters, 8, 312e12)
    with pytest.raises(TypeError, match="flops_per_token=1 GB"):
        calc.mfu(1e5, calc.amount("1 GB"), 8, 312e12)


def test_with_what_is_recomputed_it_is_the_hardwares_utilisation_and_says_so():
    model, hardware = (calc.flops_per_token("gpt2", recompute=each) for each in ("none", "full"))
    mfu, hfu = (calc.mfu(1e5, flops, 8, 312e12) for flops in (model, hardware))
    assert (mfu.name, hfu.name) == ("MFU", "HFU")
    assert float(hfu) == pytest.approx(4 / 3 * float(mfu))
    assert "is not counted" in mfu.explain() and "is counted" in hfu.explain()


def test_latent_attention_multiplies_longer_keys_than_values():
    scores = calc.flops_per_token("deepseek-v3", sequence=1)["attention"]
    queries_and_keys, values = 128 * (128 + 64), 128 * 128
    assert scores == 3 * 61 * 2 * (queries_and_keys + values)


def zb_h1_played_through(p, m):
    """Steps of ZB-H1 in units of F = B = W: backward first, then forward, then what is left."""
    forwards, backwards, weights = [0] * p, [0] * p, [0] * p
    ready_f, ready_b, now = [m] + [0] * (p - 1), [0] * p, 0
    while min(weights) < m:
        done = []
        for s in range(p):
            if backwards[s] < ready_b[s]:
                backwards[s] += 1
                done.append((ready_b, s - 1))
            elif forwards[s] < ready_f[s] and forwards[s] - backwards[s] < p - s:
                forwards[s] += 1
                done.append((ready_f, s + 1) if s + 1 < p else (ready_b, s))
            elif weights[s] < backwards[s]:
                weights[s] += 1
        for ready, s in done:
            if s >= 0:
                ready[s] += 1
        now += 1
    return now


@pytest.mark.parametrize(("p", "m"), [(1, 3), (2, 2), (3, 5), (4, 4), (5, 11)])
def test_the_bubble_of_zb_h1_is_that_of_its_schedule_played_through(p, m):
    bubble = calc.bubble_fraction(p, m, "zb_h1", relative_to="ideal")
    assert bubble == pytest.approx((zb_h1_played_through(p, m) - 3 * m) / (3 * m))


def test_zb_h1_with_fewer_microbatches_than_stages_waits_longer_and_is_refused():
    assert zb_h1_played_through(4, 2) - 3 * 2 > 4 - 1
    with pytest.raises(ValueError, match="microbatches=2 .*stages=4"):
        calc.bubble_fraction(4, 2, "zb_h1")
