"""What a program hands to torch.distributed without a Group is compared all the same."""

import re
import tempfile
import time

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed import all_reduce as all_reduce_by_name
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from labkit import Mismatch, RankError, run
from labkit.launch.diagnosis.verdict import Fault


def another_op(world):
    op = dist.ReduceOp.MAX if world.rank == 1 else dist.ReduceOp.SUM
    dist.all_reduce(torch.ones(3), op)


def another_op_of_a_function_taken_by_name(world):
    all_reduce_by_name(torch.ones(3), dist.ReduceOp.MAX if world.rank == 1 else dist.ReduceOp.SUM)


def another_root(world):
    dist.broadcast(torch.ones(3), src=1 if world.rank == 1 else 0)


def another_root_by_its_number_in_the_group(world):
    dist.reduce(torch.ones(3), group_dst=1 if world.rank == 1 else 0)


def another_number_of_elements(world):
    dist.broadcast(torch.ones(4 if world.rank == 1 else 2), 0)


def another_dtype(world):
    dtype = torch.float64 if world.rank == 1 else torch.float32
    dist.reduce_scatter_tensor(torch.ones(2, dtype=dtype), torch.ones(2 * world.size, dtype=dtype))


def another_function(world):
    x = torch.ones(3)
    if world.rank == 1:
        dist.all_reduce(x)
    else:
        dist.broadcast(x, 0)


def the_same_calls_in_another_order(world):
    weight, bias = torch.ones(3), torch.zeros(3)
    if world.rank == 1:
        dist.all_reduce(bias)
        dist.all_reduce(weight)
    else:
        dist.all_reduce(weight)
        dist.all_reduce(bias)


def a_message_that_is_too_short(world):
    if world.rank == 0:
        dist.send(torch.ones(2), 1)
    elif world.rank == 1:
        dist.recv(torch.ones(3), 0)


def another_op_in_a_subgroup(world):
    group = dist.new_group([0, 1])
    if world.rank < 2:
        op = dist.ReduceOp.MAX if world.rank == 1 else dist.ReduceOp.SUM
        dist.all_reduce(torch.ones(3), op, group=group)


def another_dtype_in_a_list(world):
    dtype = torch.float64 if world.rank == 1 else torch.float32
    x = torch.ones(2, dtype=dtype)
    dist.all_gather([torch.empty_like(x) for _ in range(world.size)], x)


def other_lists_to_gather(world):
    xs = [torch.ones(3 if world.rank == 1 else 2), torch.ones(2)]
    dist.all_gather_coalesced([[torch.empty_like(x) for x in xs] for _ in range(world.size)], xs)


def other_splits(world):
    n = 2 if world.rank == 1 else 1
    x = torch.ones(world.size + n - 1)
    sent = [n, *[1] * (world.size - 1)]
    dist.all_to_all_single(torch.empty(world.size), x, [1] * world.size, sent)


SAID = {
    another_op: "in all_reduce #1 of torch.distributed, rank 1 reduces by max .*reduces? by sum",
    another_op_of_a_function_taken_by_name: "rank 1 reduces by max",
    another_root: "in broadcast #1 of torch.distributed, .*rank 1 names rank 1 as the root",
    another_root_by_its_number_in_the_group: "in reduce #1 .*rank 1 names rank 1 as the root",
    another_number_of_elements: r"in broadcast #1 .*rank 1 passes shape \(4,\)",
    another_dtype: "in reduce_scatter #1 .*rank 1 passes float64",
    another_dtype_in_a_list: "in all_gather #1 .*rank 1 passes float64",
    other_lists_to_gather: r"in all_gather #1 .*rank 1 passes shape \(5,\)",
    other_splits: "in all_to_all #1 .*rank 1 sends rank 0 2 rows .*rank 0 expects 1",
    another_function: "rank 1 calls all_reduce #1 of torch.distributed",
    the_same_calls_in_another_order: "make the same calls in another order: .*all_reduce.weight.",
    a_message_that_is_too_short: r"send #1 of \S+ to rank 1 .*shape \(2,\).*has shape \(3,\)",
    another_op_in_a_subgroup: "in all_reduce #1 of torch.distributed/.*rank 1 reduces by max",
}


@pytest.mark.parametrize("program", SAID, ids=lambda program: program.__name__)
def test_a_mismatch_is_an_error_that_names_rank_operation_and_line(program):
    with pytest.raises(Mismatch) as caught:
        run(program, 3, timeout=20)
    said = str(caught.value).splitlines()[0]
    assert re.search(SAID[program], said), said
    assert "test_past_the_groups.py, line" in said
    assert caught.value.verdict.fault is Fault.MISMATCH


def test_what_matches_goes_through():
    def program(world):
        x, parts = torch.ones(4), [torch.zeros(4) for _ in range(world.size)]
        is_root = world.rank == 0
        dist.all_reduce(x.view(2, 2) if is_root else x)  # a backend pairs elements
        dist.reduce(x, 1, op=dist.ReduceOp.MAX)
        dist.all_gather(parts, x)
        dist.scatter(x, parts if is_root else None, src=0)
        dist.gather(x, parts if is_root else None, dst=0)
        dist.broadcast_object_list([1, "abc"], 0)
        dist.all_gather_object([None] * world.size, "x" * world.rank)
        group = dist.new_group([0, 1])
        if world.rank < 2:
            dist.all_reduce(x, group=group)
        ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
        ddp(torch.ones(1, 3)).sum().backward()
        dist.all_reduce(x, async_op=True).wait()
        return x.sum().item()

    assert len(run(program, 3).values) == 3


def test_a_process_group_that_is_made_again_begins_anew():
    def program(world, folder):
        dist.all_reduce(torch.ones(3))
        dist.broadcast(torch.ones(3), 0)
        dist.destroy_process_group()
        store = dist.FileStore(f"{folder}/again", world.size)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
        x = torch.ones(5)
        dist.all_reduce(x)
        return x.sum().item()

    with tempfile.TemporaryDirectory() as folder:
        assert run(program, 2, args=(folder,)).values == [10.0, 10.0]


def begin_anew_with_the_last_rank_first(world, folder):
    dist.destroy_process_group()
    store = dist.FileStore(f"{folder}/again", world.size)
    rank = world.size - 1 - world.rank
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world.size)


def in_another_world_another_op(world, folder):
    begin_anew_with_the_last_rank_first(world, folder)
    dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX if world.rank == 0 else dist.ReduceOp.SUM)


def in_another_world_another_root(world, folder):
    begin_anew_with_the_last_rank_first(world, folder)
    dist.broadcast(torch.ones(3), src=2 if world.rank == 0 else 0)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (in_another_world_another_op, "rank 0 reduces by max .*ranks 1 and 2 reduce by sum"),
        (in_another_world_another_root, "rank 0 names rank 0 as .*1 and 2 name rank 2 as"),
    ],
)
def test_ranks_that_number_themselves_anew_are_called_by_their_number_in_the_run(program, said):
    with tempfile.TemporaryDirectory() as folder, pytest.raises(Mismatch) as caught:
        run(program, 3, args=(folder,), timeout=30)
    assert re.search(said, str(caught.value).splitlines()[0]), str(caught.value)


def test_messages_by_tag_and_from_anybody_are_no_mismatch():
    def program(world):
        if world.rank == 0:
            x, y = torch.ones(2), torch.ones(5)
            first = dist.isend(x, 1, tag=7)
            dist.send(y, 1)
            first.wait()
            dist.send(y, 1)
            dist.send(x, 1)
        else:
            x, y = torch.zeros(2), torch.zeros(5)
            second = dist.irecv(y, 0)
            dist.recv(x, 0, tag=7)
            second.wait()
            dist.recv(y)  # whoever sends: from here on nobody can number them
            dist.recv(x, 0)
        return (x.sum() + y.sum()).item()

    assert run(program, 2).values == [7.0, 7.0]


def test_a_call_that_torch_refuses_is_refused_in_torchs_words():
    with pytest.raises(RankError, match="raised TypeError .*missing 1 required positional"):
        run(lambda world: dist.all_reduce(), 2)
    with pytest.raises(RankError, match="Expected parameter `tensor` of type torch.Tensor"):
        run(lambda world: dist.all_reduce([1.0]), 2)


def test_a_reduce_op_that_is_none_is_refused_in_torchs_words():
    def program(world):
        dist.all_reduce(torch.ones(1), op="sum")

    with pytest.raises(RankError, match="TypeError.*(ReduceOp|incompatible)"):
        run(program, 2, timeout=20)


class Seen(TorchDispatchMode):
    """Which operators are called, as CommDebugMode and FlopCounterMode look at them."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def counts_operators(world):
    x = torch.ones(7)
    with Seen() as seen:
        dist.all_reduce(x)
        group = dist.new_group([0])
    return seen.names, group is not None


def test_a_program_that_counts_operators_sees_its_own():
    for names, _ in run(counts_operators, 2, timeout=30).values:
        assert names == ["c10d.allreduce_.default"]


def only_traces(world):
    """On one rank, by one that traces with sizes for which a letter stands."""

    def step(x):
        y = x + 1
        dist.all_reduce(y)
        return y * 2

    if world.rank == 1:
        make_fx(step, tracing_mode="symbolic")(torch.ones(3))
        with FakeTensorMode():
            dist.broadcast(torch.ones(3), 0)
    x = torch.ones(3)
    dist.all_reduce(x)
    return x.tolist()


def test_what_is_only_traced_is_no_call():
    assert run(only_traces, 2, timeout=60).values == [[2.0] * 3] * 2


def test_a_function_that_torch_has_deprecated_is_refused_at_the_readers_line():
    def program(world):  # torch wraps it with the help of typing_extensions
        dist.all_reduce_coalesced([torch.ones(3), torch.ones(3, dtype=torch.float64)])

    with pytest.raises(RankError) as caught:
        run(program, 2)
    assert caught.value.site.file == __file__
    assert "ValueError at test_past_the_groups.py, line" in str(caught.value).splitlines()[0]


def test_an_operation_handed_to_the_backend_itself_is_compared_when_all_have_returned():
    def half_a_broadcast(world):
        # gloo fills what it can of the larger buffer, and says nothing.
        dist.group.WORLD.broadcast(torch.ones(4 if world.rank else 2), 0).wait()

    with pytest.raises(Mismatch, match="every rank has returned, but the numbers are wrong") as e:
        run(half_a_broadcast, 2)
    assert re.search(r"rank 0 passes shape \(2,\) .*rank 1 passes shape \(4,\)", str(e.value))
    assert "test_past_the_groups.py, line" in str(e.value)


def a_dtype_of_its_own(world, num_later, has_more=False):
    import torch.distributed._functional_collectives as functional  # not among the compared calls

    x = torch.ones(3, dtype=torch.float32 if world.rank else torch.int32)
    y = functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
    for turn in range(num_later):
        world.all_reduce(torch.ones(1))
        if has_more and turn % 4 == 0:
            dist.group.WORLD.barrier().wait()
            time.sleep(0.15)  # a rank looks every 0.05 s
    return y


def test_a_mismatch_of_torchs_own_is_found_after_many_later_operations():
    with pytest.raises(Mismatch, match="every rank has returned, but the numbers are wrong") as e:
        run(a_dtype_of_its_own, 2, (1100,), timeout=60)
    assert re.search("rank 0 passes int32 .*rank 1 passes float32", str(e.value))
    assert "test_past_the_groups.py, line" in str(e.value)


def test_and_after_torch_has_overwritten_its_record_of_it(monkeypatch):
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "64")
    with pytest.raises(Mismatch, match="every rank has returned, but the numbers are wrong") as e:
        run(a_dtype_of_its_own, 2, (80, True), timeout=60)
    assert "collective #1 of torch.distributed is all_reduce of 3 int32 on rank 0" in str(e.value)


def test_where_torch_has_overwritten_what_nobody_has_read_the_run_says_so(monkeypatch, capsys):
    def program(world):
        for _ in range(1000):
            dist.group.WORLD.allreduce([torch.ones(1)]).wait()

    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "8")
    run(program, 2, timeout=60)
    said = " ".join(capsys.readouterr().out.split())
    assert "[labkit] Some collectives that came to torch.distributed" in said
    assert re.search(r"overwritten its record of them, \d+ on rank 0 and \d+ on rank 1", said)
