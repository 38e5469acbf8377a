"""calc: bytes, messages, seconds against sums done by hand, and numbers as people write them."""

from types import SimpleNamespace

import pytest
import torch

from labkit import calc

# Ring reduce-scatter of 10 elements, chunks 3, 3, 2, 2: a rank sends all but its own.
REDUCE_SCATTER_10_OVER_4 = [7, 7, 8, 8]
# All-gather: all but the chunk of the right neighbour, who owns it.
ALL_GATHER_10_OVER_4 = [7, 8, 8, 7]


@pytest.mark.parametrize(("numel", "n"), [(10, 4), (12, 4), (3, 4), (0, 3), (7, 1), (1000, 7)])
def test_chunks_are_those_of_tensor_split(numel, n):
    split = torch.empty(numel).tensor_split(n)
    assert calc.chunk_numels(numel, n) == [chunk.numel() for chunk in split]


def sent(operation, algorithm, n, numel, **more):
    """Elements that each rank sends."""
    one = {"nbytes": 4 * numel, **more}
    return [
        calc.collective(operation, algorithm, n, rank=r, **one).sent_bytes / 4 for r in range(n)
    ]


def test_ring_phases_of_an_uneven_size():
    assert sent("reduce_scatter", "ring", 4, 10) == REDUCE_SCATTER_10_OVER_4
    assert sent("all_gather", "ring", 4, 10) == ALL_GATHER_10_OVER_4
    both = zip(REDUCE_SCATTER_10_OVER_4, ALL_GATHER_10_OVER_4)
    assert sent("all_reduce", "ring", 4, 10) == [sum(phases) for phases in both]


def test_fewer_elements_than_ranks():
    # 2 elements over 3 ranks, chunks 1, 1, 0: reduce-scatter 1, 1, 2; all-gather 1, 2, 1.
    assert sent("all_reduce", "ring", 3, 2) == [2, 3, 3]


@pytest.mark.parametrize(("numel", "n"), [(0, 4), (100, 1), (0, 1)])
def test_nothing_to_send(numel, n):
    assert sent("all_reduce", "ring", n, numel) == [0] * n


def test_ring_of_eight_sends_1_75_of_the_tensor_in_14_steps():
    ring = calc.collective("all_reduce", "ring", 8, 1e9)
    assert (ring.sent_bytes, ring.steps, ring.messages) == (1.75e9, 14, 14)
    assert calc.collective("all_reduce", "ring", 8).sent_bytes == 1.75


def test_one_gigabyte_as_one_tensor_and_as_a_hundred():
    whole, part = (calc.collective("all_reduce", "ring", 8, nbytes) for nbytes in (1e9, 1e7))
    # 14 * 5 us + 1.75 GB / 360 GB/s = 0.07 + 4.861 ms; then 100 * 0.07 + 4.861 ms.
    assert whole.seconds(5e-6, 1 / 360e9) == pytest.approx(4.931e-3, rel=1e-3)
    assert 100 * part.seconds(5e-6, 1 / 360e9) == pytest.approx(11.861e-3, rel=1e-3)


def test_a_binomial_tree_of_eight():
    assert sent("broadcast", "binomial", 8, 10) == [30, 20, 10, 10, 0, 0, 0, 0]


def test_a_binomial_tree_of_six_from_root_two():
    # From the root: 2 -> 3, 4, 0 (distance 1, 2, 4); 3 -> 5 and 1; then nobody is left.
    assert sent("broadcast", "binomial", 6, 1, root=2) == [0, 0, 3, 2, 0, 0]


def test_everyone_but_the_root_receives_a_broadcast_once():
    for n in range(1, 20):
        assert sum(sent("broadcast", "binomial", n, 1, root=n // 2)) == n - 1


def test_gather_and_scatter_are_mirror_images():
    assert sent("gather", "direct", 4, 20, root=1) == [5, 0, 5, 5]
    assert sent("scatter", "direct", 4, 20, root=1) == [0, 15, 0, 0]


def test_all_to_all_keeps_one_part():
    assert sent("all_to_all", "pairwise", 4, 400) == [300] * 4


@pytest.mark.parametrize(
    ("operation", "algorithm", "expected"),
    [
        # 5 ranks, 1000 bytes, alpha 2, beta 0.01
        ("reduce_scatter", "ring", 4 * (2 + 200 * 0.01)),
        ("all_gather", "ring", 4 * (2 + 200 * 0.01)),
        ("all_to_all", "pairwise", 4 * (2 + 200 * 0.01)),
        ("all_reduce", "ring", 8 * (2 + 200 * 0.01)),
        ("broadcast", "binomial", 3 * (2 + 1000 * 0.01)),
        ("gather", "direct", 4 * (2 + 200 * 0.01)),
        ("scatter", "direct", 4 * (2 + 200 * 0.01)),
    ],
)
def test_alpha_beta_by_hand(operation, algorithm, expected):
    five, alone = (calc.collective(operation, algorithm, n, 1000) for n in (5, 1))
    assert five.seconds(2, 0.01) == pytest.approx(expected)
    assert alone.seconds(2, 0.01) == 0


def test_busbw_is_the_links_speed_whatever_the_number_of_ranks():
    for n in (2, 3, 8, 64):
        seconds = calc.collective("all_reduce", "ring", n, 1e9).seconds(0, 1 / 50e9)
        assert calc.busbw(1e9, seconds, n) == pytest.approx(50e9)
        assert calc.algbw(1e9, seconds) == pytest.approx(50e9 * n / (2 * (n - 1)))
        seconds = calc.collective("all_gather", "ring", n, 1e9).seconds(0, 1 / 50e9)
        assert calc.busbw(1e9, seconds, n, "all_gather") == pytest.approx(50e9)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: calc.algbw(8, 0), "seconds=0"),
        (lambda: calc.busbw(8, 1, 2, "gossip"), "gossip"),
    ],
)
def test_a_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("6", 6, ""),
        (" 1,000 ", 1000, ""),
        ("2/3", 2 / 3, ""),
        ("1e9", 1e9, ""),
        ("75%", 0.75, ""),
        ("1.75x", 1.75, ""),
        ("14 steps", 14, ""),
        ("1.5 MB", 1.5e6, "bytes"),
        ("1.5MiB", 1.5 * 2**20, "bytes"),
        ("12 bytes", 12, "bytes"),
        ("4.9 ms", 4.9e-3, "seconds"),
        ("35 µs", 35e-6, "seconds"),
        ("360 GB/s", 360e9, "bytes/s"),
        ("33.9 days", 33.9 * 86400, "seconds"),
        ("1 day", 86400, "seconds"),
    ],
)
def test_a_typed_number_is_read(text, value, dimension):
    quantity = calc.units.parse_quantity(text)
    assert (quantity.value, quantity.dimension) == (pytest.approx(value), dimension)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a number"),
        ("sixish", "not a number"),
        ("1,50,3 MB", "not a number"),
        ("1.5,3", "not a number"),
        ("3 furlongs", "furlongs"),
        ("1/0", "divides by zero"),
        ("1e999", "too large"),
        ("5 ms/s", "only bytes"),
    ],
)
def test_nonsense_gets_a_complaint_that_helps(text, says):
    with pytest.raises(ValueError, match=says):
        calc.units.parse_quantity(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (calc.bytes_text(0), "0 B"),
        (calc.bytes_text(999), "999 B"),
        (calc.bytes_text(999_600), "1 MB"),
        (calc.bytes_text(1.75e9), "1.75 GB"),
        (calc.units.exact_bytes_text(12_288), "12,288 B"),
        (calc.units.exact_bytes_text(1e9), "1 GB"),
        (calc.units.size_text(64 * calc.units.KiB), "64 KiB"),
        (calc.units.size_text(3 * calc.units.MiB // 2), "1,536 KiB"),
        (calc.units.size_text(1000), "1 KB"),
        (calc.seconds_text(0), "0 s"),
        (calc.seconds_text(4.931e-3), "4.93 ms"),
        (calc.seconds_text(5e-6), "5 us"),
        (calc.count_text(7e9), "7B"),
        (calc.count_text(512), "512"),
        (calc.units.number_text(1234567), "1,234,567"),
        (calc.units.number_text(2 / 3), "0.6667"),
        (calc.units.quantity_text(50e9, "bytes/s"), "50 GB/s"),
    ],
)
def test_numbers_are_written_for_people(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    "text", ["1" + 400 * " " + "!", 20_000 * "7" + "!", 300 * "1 ", "1," * 5000, 101 * "7"]
)
def test_a_long_text_is_refused_before_it_is_searched(text, monkeypatch):
    """A pattern may take long for many characters. It is asked about 100 of them at most."""
    searched, pattern = [], calc.units._QUANTITY

    def fullmatch(short):
        searched.append(len(short))
        return pattern.fullmatch(short)

    monkeypatch.setattr(calc.units, "_QUANTITY", SimpleNamespace(fullmatch=fullmatch))
    with pytest.raises(ValueError, match="not a number|characters"):
        calc.units.parse_quantity(text)
    assert max(searched, default=0) <= 100


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("≈12", 12, ""),
        ("~ 12", 12, ""),
        ("= 12", 12, ""),
        ("12 GB.", 12e9, "bytes"),
        ("12.", 12, ""),
        ("12 percent", 0.12, ""),
        ("12 per cent.", 0.12, ""),
        ("1,5 GB", 1.5e9, "bytes"),
        ("0,365", 0.365, ""),
        ("12,3456", 12.3456, ""),
        ("1,500", 1500, ""),
        ("1,500,000", 1.5e6, ""),
        ("9.75 gigabytes", 9.75e9, "bytes"),
        ("1 gibibyte", 2**30, "bytes"),
        ("2 d", 172_800, "seconds"),
        ("7.56 milliseconds", 7.56e-3, "seconds"),
        ("7.36×", 7.36, ""),
        ("7.36x", 7.36, ""),
        ("1.5 x 10^9 bytes", 1.5e9, "bytes"),
        ("1.5 × 10⁹", 1.5e9, ""),
        ("1.5*10**9", 1.5e9, ""),
        ("10^-3 s", 1e-3, "seconds"),
        ("2/10^9", 2e-9, ""),
        ("2 * 4e6", 8e6, ""),
        ("210", 210, ""),
    ],
)
def test_fair_forms_are_read(text, value, dimension):
    assert calc.units.parse_quantity(text) == (pytest.approx(value), dimension)


def test_blanks_do_not_count_as_length():
    assert calc.units.parse_quantity("  1.5" + 500 * " " + "MB\n") == (1.5e6, "bytes")
