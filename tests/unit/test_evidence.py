"""Evidence: numbers of a text are found, proofs are calculations, and only what rounds so holds."""

import pytest

from labkit import calc
from labkit.interview import evidence, runs
from labkit.interview.evidence import numbers, numbers_in_claim, prove

ONE = "calc.collective('all_reduce', 'ring', 8, 1e9).seconds(5e-6, 1/360e9)"  # 4.931 ms
BUBBLE = "calc.bubble_fraction(10, 4)"  # 0.6923
STATES = 'calc.model_state_bytes(7.5e9, "zero_paper", zero=1, dp=64)'  # 31.40625 GB
STEPS = "calc.collective('all_reduce', 'ring', 4).steps"  # 6


@pytest.mark.parametrize(
    ("text", "value", "dimension", "step"),
    [
        ("4.93 ms", 4.93e-3, "seconds", 0.01),
        ("80 GB", 80e9, "bytes", 1),
        ("80GB", 80e9, "bytes", 1),
        ("64 KiB", 65536, "bytes", 1),
        ("1,120 GB", 1120e9, "bytes", 1),
        ("7B", 7e9, "", 1),
        ("7 B", 7, "bytes", 1),
        ("15.6T", 15.6e12, "", 0.1),
        ("128k", 128e3, "", 1),
        ("69.2%", 0.692, "share", 0.1),
        ("400 Gbit/s", 400e9, "bits/s", 1),
        ("900 GB/s", 900e9, "bytes/s", 1),
        ("989 TFLOP/s", 989e12, "FLOP/s", 1),
        ("3.14e23 FLOP", 3.14e23, "FLOP", 1e21),
        ("2.91x", 2.91, "", 0.01),
        ("54 days", 54 * 86400, "seconds", 1),
        ("3 hours", 3 * 3600, "seconds", 1),
        ("1.3 trillion", 1.3e12, "", 0.1),
        ("$2.50", 2.5, "", 0.01),
        ("2,048", 2048, "", 1),
    ],
)
def test_a_number_is_read_with_its_unit_and_its_digits(text, value, dimension, step):
    (number,) = numbers(f"It is {text}, about.")
    assert number.text == text
    assert number.value * number.scale == pytest.approx(value)
    assert (number.dimension, number.step) == (dimension, pytest.approx(step))


@pytest.mark.parametrize("text", "H100|fp32|bf16|GPT-3|1F1B|8x7B|3D|top-2|ZeRO-3".split("|"))
def test_names_are_no_numbers(text):
    assert numbers(f"as in {text}, so") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("About 2000 steps", 2000),
        ("in 2048 steps", 2048),
        ("Only 1950 microseconds", 1950e-6),
        ("PyTorch 900 steps", 900),
        ("x37", 37),
        ("×37 more", 37),
        (".5 ms", 0.5e-3),
        ("10⁹ steps", 1e9),
        ("10⁻³ s", 1e-3),
        ("the 37th step", 37),
    ],
)
def test_a_number_is_read_however_it_is_written(text, value):
    (number,) = numbers(text)
    assert number.value * number.scale == pytest.approx(value)


@pytest.mark.parametrize(
    ("says", "text"),
    [
        ("4.93 ms", ONE),
        ("4.9 ms", ONE),
        ("5 ms", ONE),
        ("4931 us", ONE),
        ("69.2%", BUBBLE),
        ("0.692", BUBBLE),
        ("31.4 GB", STATES),
        ("29.2 GiB", STATES),
        ("about 30 GB", STATES),
        ("nearly 32 GB", STATES),
        ("over 31 GB", STATES),
        ("six steps", STEPS),
        ("6 of 14 steps", f"({STEPS}, calc.collective('all_reduce', 'ring', 8).steps)"),
        ("half", "calc.bubble_fraction(5, 4)"),
        ("twice", "calc.collective('all_reduce', 'ring', 5).steps / 4"),
        ("16.1 GB", 'calc.num_parameters("llama3-8b") * 2'),  # 2 bytes each
        ("6, 14", "[calc.collective('all_reduce', 'ring', n).steps for n in (4, 8)]"),
        ("about two thirds", "calc.bubble_fraction(3, 1)"),
        ("7/23", "ratio(calc.bubble_fraction(8, 16))"),
        ("133", "min(m for m in range(1, 999) if float(calc.bubble_fraction(8, m)) <= 0.05)"),
        ("ring", "'ring' if calc.collective('all_reduce', 'ring', 4).steps > 1 else 'none'"),
    ],
)
def test_what_rounds_to_the_value_holds(says, text):
    proved = prove(says, text)
    assert proved.holds, proved.reason
    assert proved.reason == ""


@pytest.mark.parametrize(
    ("says", "text", "reason"),
    [
        ("4.94 ms", ONE, "the text says 4.94 ms, the proof gives 4.93111 ms"),
        ("4.92 ms", ONE, "the proof gives 4.93111 ms"),
        ("4.93 s", ONE, "the proof gives 0.00493111 s"),
        ("31.5 GB", STATES, "the proof gives 31.4062 GB"),
        ("31.4 GiB", STATES, "the proof gives 29.2493 GiB"),
        ("31.4 ms", STATES, "is seconds, the proof gives bytes"),
        ("about 40 GB", STATES, "the proof gives 31.4"),
        ("nearly 31 GB", STATES, "the proof gives 31.4"),
        ("over 32 GB", STATES, "the proof gives 31.4"),
        ("70%", BUBBLE, "the proof gives 69.2308%"),
        ("a third", BUBBLE, "the proof gives 0.692308"),
        ("6 of 14 steps", STEPS, "has 2 numbers, the proof gives 1"),
        ("fewer", STEPS, "has no number"),
        ("6 steps", f"{STEPS} == 6", "True proves no"),
        (
            "ring",
            "'tree' if calc.collective('all_reduce', 'ring', 4).steps else 'ring'",
            "the proof gives 'tree'",
        ),
        ("6 steps", f"math.inf * {STEPS}", "the proof gives inf"),
        ("6 steps", "calc.ring_steps(4)", "AttributeError"),
        ("6 steps", "calc.collective('all_reduce', 'ring', 0).steps", "ValueError"),
        ("6 steps", "runs.nothing.at_all()", "there is no labkit/course/nothing"),
        ("6 steps", "calc.collective(", "SyntaxError"),
        ("6 steps", "open('/dev/null') or calc.x()", "NameError"),
    ],
)
def test_what_does_not_round_so_or_proves_nothing_does_not(says, text, reason):
    proved = prove(says, text)
    assert not proved.holds
    assert reason in proved.reason


def test_words_are_numbers_only_where_no_digits_are():
    assert [each.value for each in numbers_in_claim("three of 4 ranks")] == [4]
    assert [each.value for each in numbers_in_claim("three ranks")] == [3]


def test_a_table_of_data_sheets_is_read_as_a_proof():
    assert prove("79.15 GiB", 'calc.GPUS["a100-80g"].memory_bytes').holds
    assert evidence.uses('calc.GPUS["h100"].flops_per_s', "calc")


def test_a_real_run_is_launched_once(monkeypatch):
    bytes_sent = "runs.collectives.ring_sent_bytes(3, 3_000)"
    assert prove("4,000 bytes", bytes_sent).holds
    assert calc.collective("all_reduce", "ring", 3, 3_000).sent_bytes == 4_000
    monkeypatch.setattr(runs.collectives, "run", None)  # a second launch would fail
    assert prove("4,000 bytes", bytes_sent).holds
    assert not prove("5,000 bytes", "runs.collectives.ring_sent_bytes(3, 3_003)").holds
