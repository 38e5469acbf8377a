"""FSDP2's switches, gathers of 8 bits and buckets, in numbers that can be checked by hand."""

import pytest

from labkit import calc


def test_the_switches_of_fsdp2():
    def volume(*how, **more):
        return calc.fsdp_traffic_bytes(1e9, 8, *how, itemsize=1, **more) / 1e9

    assert volume() == pytest.approx(3 * 7 / 8)
    assert volume(False) == pytest.approx(2 * 7 / 8)
    assert volume(2) == pytest.approx(7 / 8 + 1 / 2 + 7 / 8)
    assert volume(8) == volume(True)
    assert volume(1) == volume(False)
    assert volume(microbatches=4) == pytest.approx(12 * 7 / 8)
    assert volume(microbatches=4, reduce_once=True) == pytest.approx(9 * 7 / 8)
    assert volume(gradient_itemsize=4) == pytest.approx(6 * 7 / 8)
    assert volume() == calc.step_traffic_bytes("zero3", 1e9, 8, itemsize=1) / 1e9


def test_eight_bits_halve_a_gather_of_bfloat16_but_for_the_scales():
    assert calc.gather_bytes(1000, 4, "bfloat16") == 3 * 250 * 2
    assert (
        calc.gather_bytes(1000, 4, "float8") == 3 * (250 + 4) == calc.gather_bytes(1000, 4, "int8")
    )
    assert calc.gather_bytes(1001, 4, "float32") == 3 * 251 * 4  # padded to 4 x 251


def test_buckets_are_filled_in_order():
    assert calc.bucket_sizes([4, 4, 4, 4, 4], 8) == [2, 2, 1]
    assert calc.bucket_sizes([3, 100, 3, 3], 8) == [1, 1, 2]
    assert calc.bucket_sizes([], 8) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: calc.fsdp_traffic_bytes(1e9, 8, 3), "reshard_after_forward=3 .*1, 2, 4"),
        (lambda: calc.gather_bytes(10, 2, "float4"), "wire='float4': give one of float32"),
        (lambda: calc.bucket_sizes([1], 0), "bucket_bytes=0"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
