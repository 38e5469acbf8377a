"""calc of context parallelism against sums done by hand."""

import pytest

from labkit import calc
from labkit.calc.traffic.context import ring_attention_messages

SIZES = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 8, "batch": 3}
KV = 2 * 2 * 8 * 3  # numbers of keys and values per token
Q = 4 * 8 * 3


def sent(strategy, num_tokens, n, rank, **more):
    return calc.context_traffic_bytes(strategy, num_tokens, n, rank, **SIZES, **more)


def test_tokens_by_placement():
    assert calc.context_shard_tokens(10, 4, "contiguous") == [3, 3, 2, 2]
    # Eight segments: 2 2 1 1 1 1 1 1; rank 0 has the first and the last.
    assert calc.context_shard_tokens(10, 4, "zigzag") == [3, 3, 2, 2]
    # Six segments: 2 2 1 1 1 1 of 8, and of 3 tokens 1 1 1 0 0 0.
    assert calc.context_shard_tokens(8, 3, "zigzag") == [3, 3, 2]
    assert calc.context_shard_tokens(3, 3, "zigzag") == [1, 1, 1]
    assert calc.context_shard_tokens(9, 4, "zigzag") == [3, 2, 2, 2]
    assert calc.context_shard_tokens(2, 4, "contiguous") == [1, 1, 0, 0]


def test_a_ring_sends_all_but_what_the_right_neighbour_has():
    # 10 tokens, 3 3 2 2. Rank 1 passes on those of ranks 1, 0 and 3: 3 + 3 + 2 = 8 tokens, and in
    # backward gradients of ranks 0, 3 and 2: 3 + 2 + 2 = 7.
    result = sent("ring", 10, 4, 1)
    assert result["forward, keys and values"] == 8 * KV * 2
    assert result["backward, keys and values"] == 8 * KV * 2
    assert result["backward, their gradients"] == 7 * KV * 4
    assert result == (8 + 8 + 2 * 7) * KV * 2
    # Rank 3's right neighbour is rank 0.
    assert sent("ring", 10, 4, 3)["forward, keys and values"] == 7 * KV * 2
    in_float64 = sent("ring", 10, 4, 1, itemsize=8)
    assert in_float64["backward, their gradients"] == 7 * KV * 8
    in_bfloat16 = sent("ring", 10, 4, 1, gradient_itemsize=2)
    assert in_bfloat16["backward, their gradients"] == 7 * KV * 2


def test_gathering_sends_a_shard_to_everyone_and_gradients_to_their_owners():
    result = sent("gathered", 10, 4, 3, itemsize=4)
    assert result["forward, keys and values"] == 3 * 2 * KV * 4
    assert result["backward, their gradients"] == 8 * KV * 4


def test_ulysses_sends_heads_out_and_tokens_back():
    # 2 ranks, 7 tokens, 4 + 3: rank 0 has 2 of 4 heads of queries, and 1 of 2 of keys.
    result = sent("ulysses", 7, 2, 0)
    assert result["forward, q, k and v"] == 4 * (Q // 2 + KV // 2) * 2
    assert result["forward, out"] == 3 * (Q // 2) * 2
    assert result["backward, gradient of out"] == 4 * (Q // 2) * 2
    assert result["backward, gradients of q, k and v"] == 3 * (Q // 2 + KV // 2) * 2


@pytest.mark.parametrize("n", [1, 2, 4, 8])
def test_equal_shards_are_the_closed_forms(n):
    tokens, own = 64 * n, 64
    same = {"num_heads": 8, "head_dim": 16}
    unit = 2 * 8 * 16 * 2 * own  # the keys and values of a rank
    for rank in range(n):
        forward = {
            strategy: sum(
                part.value
                for name, part in calc.context_traffic_bytes(
                    strategy, tokens, n, rank, **same
                ).parts.items()
                if name.startswith("forward")
            )
            for strategy in ("ring", "gathered", "ulysses")
        }
        assert forward["ring"] == forward["gathered"] == (n - 1) * unit
        assert forward["ulysses"] == 2 * (n - 1) / n * unit


def test_alone_nothing_is_sent():
    for strategy in ("ring", "gathered", "ulysses"):
        assert sent(strategy, 10, 1, 0) == 0
    assert ring_attention_messages(1) == 0


def test_messages_go_round_three_times():
    messages = ring_attention_messages(8)
    assert messages == 21
    assert messages["forward, keys and values"] == 7


@pytest.mark.parametrize("placement", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("num_tokens", "n"), [(0, 3), (2, 4), (13, 1), (13, 3), (64, 4)])
@pytest.mark.parametrize("tile", [None, 1, 5, 100])
def test_scores_are_those_of_pairs_counted_one_by_one(placement, num_tokens, n, tile):
    for rank in range(n):
        segments = segments_by_hand(num_tokens, n, rank, placement)
        expected = 0
        for segment in segments:
            for place, position in enumerate(segment):
                start = place - place % (tile or 1)
                of_tile = segment[start : start + (tile or 1)]
                expected += of_tile[0] + len(of_tile) if tile else position + 1
        found = calc.context_score_elements(num_tokens, n, rank, placement=placement, tile=tile)
        assert found == expected


def segments_by_hand(num_tokens, n, rank, placement):
    """Tokens dealt out one at a time."""
    numbers = [rank] if placement == "contiguous" else [rank, 2 * n - 1 - rank]
    count = n if placement == "contiguous" else 2 * n
    sizes = [len(range(number, num_tokens, count)) for number in range(count)]
    starts = [sum(sizes[:number]) for number in range(count)]
    return [list(range(starts[each], starts[each] + sizes[each])) for each in numbers]


def test_contiguous_is_unbalanced_and_zigzag_is_not():
    n, tokens = 4, 4096
    by_rank = {
        placement: [
            calc.context_score_elements(tokens, n, rank, placement=placement).value
            for rank in range(n)
        ]
        for placement in ("contiguous", "zigzag")
    }
    assert len(set(by_rank["zigzag"])) == 1
    assert sum(by_rank["zigzag"]) == sum(by_rank["contiguous"]) == tokens * (tokens + 1) / 2
    assert by_rank["contiguous"][-1] / by_rank["contiguous"][0] == pytest.approx(
        2 * n - 1, rel=0.01
    )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: sent("star", 10, 4, 0), "strategy='star'"),
        (lambda: sent("ring", 10, 4, 4), "rank=4"),
        (lambda: sent("ring", -1, 4, 0), "num_tokens=-1"),
        (lambda: sent("ring", 2.5, 4, 0), "num_tokens=2.5"),
        (lambda: sent("ring", 10, 0, 0), "world_size=0"),
        (lambda: sent("ring", 10, 4, 0, itemsize=0), "itemsize=0"),
        (lambda: sent("ring", 10, 4, 0, gradient_itemsize=0.5), "gradient_itemsize=0.5"),
        (lambda: sent("ring", 10, 4, 0, placement="spiral"), "placement='spiral'"),
        (lambda: sent("ulysses", 10, 4, 0), "world_size=4 does not divide num_kv_heads=2"),
        (lambda: calc.context_score_elements(10, 4, 0, tile=0), "tile=0"),
        (lambda: ring_attention_messages(0), "world_size=0"),
        (
            lambda: calc.context_traffic_bytes(
                "ring", 8, 2, 0, num_heads=6, num_kv_heads=4, head_dim=1
            ),
            "num_kv_heads=4 do not divide num_heads=6",
        ),
    ],
)
def test_a_bad_input_is_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize("value", ["x", None, True, [1]])
def test_what_is_no_number_is_refused(value):
    right = {"num_heads": 4, "head_dim": 8, "batch": 1, "itemsize": 2}
    for name in right:
        with pytest.raises(TypeError, match=name):
            calc.context_traffic_bytes("ring", 8, 2, 0, **{**right, name: value})
    for position in range(3):
        arguments = [8, 2, 0]
        arguments[position] = value
        with pytest.raises(TypeError):
            calc.context_score_elements(*arguments)
