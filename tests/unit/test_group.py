"""Group's operations: what moves where, at world sizes 1 to 4, and what is refused."""

import gc
import time

import pytest
import torch

from labkit import RankError, run
from labkit.collectives import ring_all_reduce

WORLD_SIZES = [1, 2, 3, 4]


def every_operation(world):
    """All operations on tensors from which the sender can be read: rank 2's are 20, 21, ..."""
    n, rank = world.size, world.rank
    x = torch.arange(2 * n) + 10 * rank
    results = {
        "x": x,
        "sum": world.all_reduce(x),
        "mean": world.all_reduce(x.double(), "mean"),
        "max": world.all_reduce(x, "max"),
        "min": world.all_reduce(x, "min"),
        "reduce_scatter": world.reduce_scatter(x),
        "reduce_scatter_mean": world.reduce_scatter(x.double(), "mean"),
        "all_gather": world.all_gather(x),
        "all_to_all": world.all_to_all(x),
        "broadcast": world.broadcast(x, root=n - 1),
        "gather": world.gather(x, root=n - 1),
        "scatter": world.scatter(x if rank == 0 else None, out=torch.empty(2).long()),
        "number": world.all_gather(torch.tensor(rank)),
    }
    world.barrier()
    results["x afterwards"] = x
    return results


@pytest.fixture(scope="module", params=WORLD_SIZES)
def moved(request):
    """x by rank, stacked, and every operation's results by rank."""
    values = run(every_operation, request.param).values
    return torch.stack([value["x"] for value in values]), values


def of_every_rank(values, name):
    return [value[name] for value in values]


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
def test_all_reduce_gives_every_rank_the_reduction(moved, op):
    x, values = moved
    reduced = {"sum": x.sum(0), "mean": x.double().mean(0), "max": x.amax(0), "min": x.amin(0)}
    for result in of_every_rank(values, op):
        torch.testing.assert_close(result, reduced[op])


def test_reduce_scatter_leaves_each_rank_its_block_of_the_sum(moved):
    x, values = moved
    for rank, result in enumerate(of_every_rank(values, "reduce_scatter")):
        assert result.tolist() == x.sum(0)[2 * rank : 2 * rank + 2].tolist()
    for rank, result in enumerate(of_every_rank(values, "reduce_scatter_mean")):
        torch.testing.assert_close(result, x.double().mean(0)[2 * rank : 2 * rank + 2])


def test_all_gather_joins_in_rank_order(moved):
    x, values = moved
    assert all(torch.equal(result, x.flatten()) for result in of_every_rank(values, "all_gather"))
    numbers = of_every_rank(values, "number")
    assert all(number.tolist() == list(range(len(x))) for number in numbers)


def test_all_to_all_is_a_transposition_of_blocks(moved):
    x, values = moved
    n = len(x)
    for rank, result in enumerate(of_every_rank(values, "all_to_all")):
        assert torch.equal(result, x.view(n, n, 2)[:, rank].flatten())


def test_rooted_operations_go_to_and_from_the_root(moved):
    x, values = moved
    n = len(x)
    assert all(torch.equal(result, x[-1]) for result in of_every_rank(values, "broadcast"))
    gathered = of_every_rank(values, "gather")
    assert torch.equal(gathered[-1], x.flatten())
    assert gathered[:-1] == [None] * (n - 1)
    for rank, result in enumerate(of_every_rank(values, "scatter")):
        assert torch.equal(result, x[0][2 * rank : 2 * rank + 2])


def test_arguments_are_left_alone(moved):
    x, values = moved
    assert torch.equal(torch.stack(of_every_rank(values, "x afterwards")), x)


def in_place_and_in_flight(world):
    x = torch.full((3, 2), float(world.rank + 1))
    transposed = x.t()
    same = world.all_reduce(transposed, out=transposed)
    pending = world.all_reduce(x, wait=False)
    first, second = pending.wait(), pending.wait()
    gathered = world.all_gather(x[0], out=torch.empty(2 * world.size))
    return x, same, first, first is second, gathered


def test_out_receives_the_result_also_where_it_is_not_contiguous():
    for x, same, *_ in run(in_place_and_in_flight, 3).values:
        assert torch.equal(x, torch.full((3, 2), 6.0))
        assert torch.equal(same, torch.full((2, 3), 6.0))


def test_a_pending_gives_the_same_result_every_time():
    for _, _, first, is_same, _ in run(in_place_and_in_flight, 3).values:
        assert torch.equal(first, torch.full((3, 2), 18.0))
        assert is_same


DTYPES = [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16]
DTYPES += [torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool]
ONLY_MOVED = [torch.bool, torch.int16, torch.uint16, torch.uint32, torch.float8_e4m3fn]


def move_dtypes(world):
    results = []
    for dtype in [*DTYPES, *ONLY_MOVED]:
        x = torch.ones(4).to(dtype)
        total = None if dtype in ONLY_MOVED else world.all_reduce(x)
        right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        sending = world.isend(x, right)
        received = world.recv(torch.zeros(4).to(dtype), left)
        sending.wait()
        moved = [world.broadcast(x), world.all_to_all(x), world.all_gather(x)[:4]]
        gathered = world.gather(x, root=1)
        moved.append(x if gathered is None else gathered[4:])
        moved.append(world.scatter(x if world.rank == 0 else None, out=x[:2].clone()))
        wide = torch.complex128 if dtype.is_complex else torch.float64
        results.append((x.to(wide), total, [y.to(wide) for y in (received, *moved)]))
    return results


def test_every_dtype_travels():
    for x, total, moved in run(move_dtypes, 2).values[1]:
        assert all(torch.equal(y, x[: len(y)]) for y in moved)
        assert total is None or torch.equal(total.to(x.dtype), x + x)


def uneven_all_to_all(world):
    """Rank r has r + s + 1 rows for rank s."""
    send_splits = [world.rank + s + 1 for s in range(world.size)]
    x = torch.full((sum(send_splits), 2), world.rank)
    return world.all_to_all(x, send_splits, recv_splits=send_splits)  # symmetric in r and s


def test_all_to_all_takes_uneven_splits():
    for rank, result in enumerate(run(uneven_all_to_all, 3).values):
        assert result[:, 0].tolist() == [s for s in range(3) for _ in range(rank + s + 1)]


def in_halves(world):
    half = world.split(color=world.rank % 2)
    quarter = half.split(color=half.rank)
    none = world.split(color=None if world.rank == 0 else 5)
    return (
        half.ranks,
        half.rank,
        half.all_reduce(torch.tensor(world.rank)).item(),
        quarter.ranks,
        none.all_gather(torch.tensor(world.rank)).tolist() if none else None,
    )


def test_split_makes_groups_that_reduce_on_their_own():
    values = run(in_halves, 5).values
    assert [value[0] for value in values] == [(0, 2, 4), (1, 3), (0, 2, 4), (1, 3), (0, 2, 4)]
    assert [value[1] for value in values] == [0, 0, 1, 1, 2]
    assert [value[2] for value in values] == [6, 4, 6, 4, 6]
    assert [value[3] for value in values] == [(rank,) for rank in range(5)]
    assert [value[4] for value in values] == [None, *[[1, 2, 3, 4]] * 4]


def overlapping_groups(world):
    """Members of each group have been in different numbers of groups before."""
    sums = []
    for members in [(0, 1), (0, 2), (1, 2), (0, 1, 3), (2, 3)]:
        group = world.split(0 if world.rank in members else None)
        sums.append(group.all_reduce(torch.tensor(world.rank)).item() if group else None)
    return sums, world.split(world.rank < 2).ranks


def use_a_group_of_others(world):
    pair = world.split(0 if world.rank < 2 else None)
    pair.all_reduce(torch.ones(1))


def test_a_group_that_a_rank_does_not_belong_to_refuses_every_call():
    with pytest.raises(RankError, match="rank 2 uses all_reduce"):
        run(use_a_group_of_others, 3)


def test_groups_may_overlap():
    values = run(overlapping_groups, 4).values
    assert [sums for sums, _ in values] == [
        [1, 2, None, 4, None],
        [1, None, 3, 4, None],
        [None, 2, 3, None, 5],
        [None, None, None, 4, 5],
    ]
    assert [ranks for _, ranks in values] == [(0, 1), (0, 1), (2, 3), (2, 3)]


def forget_the_send(world, forgotten):
    if world.rank == 0:
        world.isend(torch.ones(1000), dst=1)
        gc.collect()
        forgotten.touch()
        return None
    while not forgotten.exists():  # the message waits for its reader
        time.sleep(0.01)
    return world.recv(torch.zeros(1000), src=0).sum().item()


def test_a_send_that_nobody_waits_for_arrives(tmp_path):
    assert run(forget_the_send, 2, (tmp_path / "forgotten",)).values == [None, 1000]


def reduce_into_a_transposed_view(world):
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    return world.all_reduce(x, out=x.t())


def test_out_may_overlap_with_x():
    assert run(reduce_into_a_transposed_view, 1).values[0].tolist() == [[1, 2], [3, 4]]


REFUSED = [
    (lambda world: world.send(torch.ones(1), dst=2), "dst=2 is not a rank of this group of 2"),
    (lambda world: world.send(torch.ones(1), dst=world.rank), "is this rank itself"),
    (lambda world: world.recv(torch.ones(1), src=-1), "src=-1 is not a rank"),
    (lambda world: world.all_reduce([1.0]), "expected a tensor"),
    (lambda world: world.all_reduce(torch.ones(1), "avg"), "choose one of sum, mean, max, min"),
    (lambda world: world.all_reduce(torch.ones(1).bool()), "not defined on booleans"),
    (lambda world: world.all_reduce(torch.ones(1).int(), "mean"), "mean of torch.int32"),
    (lambda world: world.all_reduce(torch.ones(1) * 1j, "max"), "no order"),
    (lambda world: world.all_reduce(torch.ones(1).short()), "gloo cannot reduce torch.int16"),
    (lambda world: world.split("a"), "color='a': give a whole number"),
    (lambda world: world.region(3).__enter__(), "region names a span of work: 3 is no text"),
    (lambda world: world.all_to_all(torch.ones(2), [1.0, 1.0], [1, 1]), "needs one number of rows"),
    (lambda world: world.all_to_all(torch.ones(2), [2, 0], [1, 1]), "keeps for itself"),
    (lambda world: world.all_reduce(torch.ones(1), ["sum"]), "choose one of sum"),
    (
        lambda world: world.recv(torch.ones(1).expand(2), 1 - world.rank),
        "its elements share memory",
    ),
    (lambda world: world.recv((torch.ones(1) * 1j).conj(), 1 - world.rank), "resolve_conj"),
    (lambda world: world.split(0.5), "color=0.5: give a whole number"),
    (lambda world: world.all_to_all(torch.tensor(1.0), [1, 0], [1, 0]), "pass x[None]"),
    (lambda world: world.all_reduce(torch.ones(1), out=torch.ones(2)), "out has shape"),
    (lambda world: world.all_reduce(torch.ones(1, device="meta")), "is on meta"),
    (lambda world: world.reduce_scatter(torch.ones(3)), "cannot cut a tensor of shape"),
    (lambda world: world.all_to_all(torch.ones(3)), "say how with send_splits"),
    (lambda world: world.all_to_all(torch.ones(3), [1, 1], [1, 1]), "add up to 2 rows"),
    (lambda world: world.all_to_all(torch.ones(3), [3], [1, 1]), "needs one number of rows"),
    (lambda world: world.broadcast(torch.ones(1), root=7), "root=7 is not a rank"),
    (lambda world: world.scatter(None, torch.ones(1), root=world.rank), "pass the tensor to cut"),
    (lambda world: world.scatter(torch.ones(2), torch.ones(1), root=1 - world.rank), "pass x=None"),
]


def collect_refusals(world):
    messages = []
    for call, _ in REFUSED:
        try:
            call(world)
        except (TypeError, ValueError) as error:
            messages.append(str(error))
        else:
            messages.append("accepted")
    return messages, len(messages)


def test_wrong_calls_are_refused_before_anything_is_sent():
    result = run(collect_refusals, 2)
    for messages, _ in result.values:
        for message, (_, expected) in zip(messages, REFUSED, strict=True):
            assert expected in message
    assert all(timeline.operations == [] for timeline in result.timeline)


def test_a_group_needs_a_world():
    from labkit import Group

    with pytest.raises(RuntimeError, match="`world`"):
        Group.default()


def default_group(world):
    from labkit import Group

    return Group.default().all_reduce(torch.tensor(world.rank)).item()


def test_the_default_group_is_torch_distributeds():
    result = run(default_group, 3)
    assert result.values == [3, 3, 3]
    assert [op.name for op in result.timeline[0].operations] == ["all_reduce #1"], "the same world"


def wait_twice_for_what_breaks(world):
    messages = []
    if world.rank == 0:
        pending = world.irecv(torch.empty(1), src=1)
        pending._work = object()  # as if the backend broke
        for _ in range(2):
            try:
                pending.wait()
            except (AttributeError, RuntimeError) as error:
                messages.append(str(error))
    return messages


def test_a_failed_pending_says_so_again():
    first, second = run(wait_twice_for_what_breaks, 2).values[0]
    assert "'wait'" in first and "first waited for" in second


def test_collectives_of_the_lab_refuse_a_group_that_the_rank_is_not_in():
    def outsider(world):
        group = world.split(None if world.rank == 1 else 0)
        return ring_all_reduce(torch.ones(1), group)

    with pytest.raises(RankError, match="rank 1 uses size"):
        run(outsider, 2)


def test_what_is_no_group_is_refused_as_one():
    with pytest.raises(RankError, match="group=3 is no Group"):
        run(lambda world: ring_all_reduce(torch.ones(1), 3), 1)
