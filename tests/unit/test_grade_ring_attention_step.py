"""The grader of ring_attention_step: what it accepts, and what cannot fool it."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.grade import check
from labkit.grade.graders.context_blocks import causal, output
from labkit.grade.graders.context_inputs import given_in, random_cases
from labkit.grade.graders.context_messages import blocks_of
from labkit.grade.graders.context_theories import mistakes
from labkit.grade.workspace import Workspace

WORKSPACE = Workspace(Path(__file__).parents[2])
NAME = "ring_attention_step"


def keys_and_values_apart(q, k, v, num_tokens, group):
    """Two messages to a block; blocks merged by log-sum-exps; sends are waited for a step later."""
    n, rank, scale = group.size, group.rank, q.shape[2] ** -0.5
    begins = [0]
    for r in range(n):
        begins.append(begins[-1] + num_tokens // n + (r < num_tokens % n))
    o, lse, sends, receives = torch.zeros_like(q), None, [], []
    for source in [*range(rank, -1, -1), *range(n - 1, rank, -1)]:
        for each in sends:
            each.wait()
        sends = []
        left = (source - 1) % n
        if left != rank:
            size = begins[left + 1] - begins[left]
            receives = [group.irecv(k.new_empty(len(k), size, k.shape[2]), left_of(group))]
            receives.append(group.irecv(k.new_empty(len(k), size, k.shape[2]), left_of(group)))
            sends = [group.isend(each, (rank + 1) % n) for each in (k, v)]
        if source <= rank:
            scores = torch.einsum("htk,hsk->hts", scale * q, k)
            if source == rank:
                scores += torch.full(scores.shape[1:], -torch.inf).triu(1)
            its = scores.logsumexp(2, keepdim=True)
            new = its if lse is None else torch.logaddexp(lse, its)
            o = o * (0 if lse is None else (lse - new).exp()) + (scores - new).exp() @ v
            lse = new
        if left != rank:
            k, v = [each.wait() for each in receives]
    for each in sends:
        each.wait()
    return o


def left_of(group):
    return (group.rank - 1) % group.size


def only_as_far_as_needed(q, k, v, num_tokens, group):
    """A line and no ring: nobody sends a block to whom it comes too late; two buffers in turn."""
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    block, o, total = torch.cat([k, v], 2), 0, 0
    buffers = [torch.empty(len(k) * sizes[0] * 2 * k.shape[2], dtype=k.dtype) for _ in range(2)]
    largest = torch.full_like(q[..., :1], -torch.inf)
    for source in range(rank, -1, -1):
        pendings = []
        if source:
            numel = len(k) * sizes[source - 1] * 2 * k.shape[2]
            place = buffers[source % 2][:numel].view(len(k), sizes[source - 1], -1)
            pendings.append(group.irecv(place, rank - 1))
        if rank < n - 1:
            pendings.append(group.isend(block, rank + 1))
        for head in range(len(q)):
            keys, values = block[head].chunk(2, 1)
            scores = q[head].mm(keys.T) / q.shape[2] ** 0.5
            if source == rank:
                scores.masked_fill_(torch.ones_like(scores).triu(1).bool(), -torch.inf)
            new = torch.maximum(largest[head], scores.amax(1, keepdim=True))
            factor, weights = (largest[head] - new).exp(), (scores - new).exp()
            if head == 0 and source == rank:
                o, total = torch.zeros_like(q), torch.zeros_like(largest)
            o[head] = o[head] * factor + weights.mm(values)
            total[head] = total[head] * factor + weights.sum(1, keepdim=True)
            largest[head] = new
        for each in pendings:
            each.wait()
        if source:
            block = place
    return o / total


def blocking_send_after_irecv(q, k, v, num_tokens, group):
    return ring(q, k, v, num_tokens, group, blocks=True)


def ring(q, k, v, num_tokens, group, blocks=False, computes=True, around=1):
    """As in the solution, in short; scores of later blocks are left out."""
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    block, o, lse = torch.stack([k, v]), torch.zeros_like(q), None
    for step in range(n):
        source, pendings, arriving = (rank - around * step) % n, [], block
        if step < n - 1:
            size = sizes[(source - around) % n]
            arriving = k.new_empty(2, len(k), size, k.shape[2])
            pendings.append(group.irecv(arriving, (rank - around) % n))
            if blocks:
                group.send(block, (rank + around) % n)
            else:
                pendings.append(group.isend(block, (rank + around) % n))
        if source <= rank:
            scores = q @ block[0].mT * q.shape[2] ** -0.5
            if source == rank:
                scores = scores.masked_fill(torch.ones_like(scores[0]).triu(1) > 0, -torch.inf)
            its = scores.logsumexp(2, keepdim=True)
            new = its if lse is None else torch.logaddexp(lse, its)
            part = torch.exp(scores - new) @ block[1]
            o, lse = part if lse is None else o * torch.exp(lse - new) + part, new
        for each in pendings:
            each.wait()
        block = arriving
    return o


def query_by_query(q, k, v, num_tokens, group):
    """Products of a matrix and a vector, over the keys that a query sees, and no others."""
    return around(q, k, v, num_tokens, group, row_by_row)


def by_elements(q, k, v, num_tokens, group):
    """Without a product of matrices: sums of products of elements, a feature at a time."""
    return around(q, k, v, num_tokens, group, feature_by_feature)


def by_powers(q, k, v, num_tokens, group):
    """Weights are powers of two."""
    return around(q, k, v, num_tokens, group, product_of_powers)


def by_softmax(q, k, v, num_tokens, group):
    return around(q, k, v, num_tokens, group, softmax_of_a_block)


def around(q, k, v, num_tokens, group, attend):
    """attend: (q, k, v, whether it is the own block) -> output and log-sum-exp of one block."""
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    block, o, lse = torch.stack([k, v]), None, None
    for source in [*range(rank, -1, -1), *range(n - 1, rank, -1)]:
        pendings, arriving = [], block
        if (left := (source - 1) % n) != rank:
            arriving = k.new_empty(2, len(k), sizes[left], k.shape[2])
            pendings.append(group.irecv(arriving, left_of(group)))
            pendings.append(group.isend(block, (rank + 1) % n))
        if source <= rank:
            its, its_lse = attend(q, block[0], block[1], source == rank)
            new = its_lse if lse is None else torch.logaddexp(lse, its_lse)
            its = its * 2 ** ((its_lse - new) / LN_2)
            o, lse = its if lse is None else o * 2 ** ((lse - new) / LN_2) + its, new
        for each in pendings:
            each.wait()
        block = arriving
    return o


LN_2 = 0.6931471805599453


def row_by_row(q, k, v, is_own):
    o, lse = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    for head in range(len(q)):
        for row in range(q.shape[1]):
            seen = row + 1 if is_own else k.shape[1]
            scores = k[head, :seen].mv(q[head, row]) * q.shape[2] ** -0.5
            weights = (scores - scores.max()).exp()
            o[head, row] = v[head, :seen].T.mv(weights / weights.sum())
            lse[head, row] = scores.max() + weights.sum().log()
    return o, lse


def feature_by_feature(q, k, v, is_own):
    scores = sum(q[..., i, None] * k[..., None, :, i] for i in range(q.shape[2]))
    weights, lse = powers_of_two(scores * q.shape[2] ** -0.5, is_own)
    return torch.stack([(weights * v[:, None, :, i]).sum(2) for i in range(q.shape[2])], 2), lse


def product_of_powers(q, k, v, is_own):
    weights, lse = powers_of_two(torch.bmm(q * q.shape[2] ** -0.5, k.mT), is_own)
    return torch.einsum("hts,hsk->htk", weights, v), lse


def powers_of_two(scores, is_own):
    scores = masked(scores, is_own)
    most = scores.amax(2, keepdim=True)
    weights = 2 ** ((scores - most) / LN_2)
    total = weights.sum(2, keepdim=True)
    return weights / total, most + total.log()


def masked(scores, is_own):
    is_later = torch.ones_like(scores[0]).triu(1) > 0
    return scores.masked_fill(is_later, -torch.inf) if is_own else scores


def softmax_of_a_block(q, k, v, is_own):
    scores = torch.baddbmm(q.new_zeros(()), q, k.mT, beta=0, alpha=q.shape[2] ** -0.5)
    scores = masked(scores, is_own)
    return torch.softmax(scores, 2) @ v, torch.logsumexp(scores, 2, keepdim=True)


RIGHT = [
    keys_and_values_apart,
    only_as_far_as_needed,
    ring,
    query_by_query,
    by_elements,
    by_powers,
    by_softmax,
]


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_answers_of_another_kind_pass(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict, verdict


def returns_nothing(q, k, v, num_tokens, group):
    ring(q, k, v, num_tokens, group)


def returns_a_list(q, k, v, num_tokens, group):
    return [ring(q, k, v, num_tokens, group)]


def returns_a_sparse_tensor(q, k, v, num_tokens, group):
    return ring(q, k, v, num_tokens, group).to_sparse()


def returns_float32(q, k, v, num_tokens, group):
    return ring(q, k, v, num_tokens, group).float()


def returns_the_heads_last(q, k, v, num_tokens, group):
    return ring(q, k, v, num_tokens, group).permute(1, 2, 0)


def returns_nan(q, k, v, num_tokens, group):
    return ring(q, k, v, num_tokens, group) * torch.nan


def the_other_way_around(q, k, v, num_tokens, group):
    return ring(q, k, v, num_tokens, group, around=-1)


def in_numpy(q, k, v, num_tokens, group):
    """What has come is put aside where nobody sees it, and computed with at the end."""
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    block, kept = torch.stack([k, v]), []
    for step in range(n):
        source = (rank - step) % n
        if source <= rank:
            kept.insert(0, block.numpy().copy())
        if step < n - 1:
            arriving = k.new_empty(2, len(k), sizes[(source - 1) % n], k.shape[2])
            receive = group.irecv(arriving, (rank - 1) % n)
            group.isend(block, (rank + 1) % n).wait()
            block = receive.wait()
    keys, values = torch.from_numpy(np.concatenate(kept, 2))
    scores = q @ keys.mT * q.shape[2] ** -0.5
    rows = sum(sizes[:rank]) + torch.arange(sizes[rank])[:, None]
    return scores.masked_fill(torch.arange(keys.shape[1]) > rows, -torch.inf).softmax(2) @ values


def a_dummy_before_it_posts(q, k, v, num_tokens, group):
    """Nor does one that comes first make the rank one that computes, and posts afterwards."""
    torch.exp(q[:, :1])
    return after_a_dummy(q, k, v, num_tokens, group, lambda: torch.exp(q))


def after_products_of_one_query(q, k, v, num_tokens, group):
    return after_a_dummy(q, k, v, num_tokens, group, lambda: q[:, :1] @ k.mT)


def after_exponentials_of_enough_numbers(q, k, v, num_tokens, group):
    size = q.shape[1]
    dummy = torch.zeros(len(q), size, size)
    return after_a_dummy(q, k, v, num_tokens, group, lambda: torch.exp(dummy))


def after_a_dummy(q, k, v, num_tokens, group, dummy):
    """In between there is the dummy, and then the block is computed with."""
    n, rank = group.size, group.rank
    sizes = [len(share) for share in torch.arange(num_tokens).tensor_split(n)]
    block, o, lse = torch.stack([k, v]), None, None
    for source in [*range(rank, -1, -1), *range(n - 1, rank, -1)]:
        arriving = block
        if (left := (source - 1) % n) != rank:
            arriving = k.new_empty(2, len(k), sizes[left], k.shape[2])
            receive = group.irecv(arriving, left_of(group))
            send = group.isend(block, (rank + 1) % n)
            dummy()
            receive.wait()
            send.wait()
        if source <= rank:
            its, its_lse = softmax_of_a_block(q, block[0], block[1], source == rank)
            new = its_lse if lse is None else torch.logaddexp(lse, its_lse)
            its = its * (its_lse - new).exp()
            o, lse = its if lse is None else o * (lse - new).exp() + its, new
        block = arriving
    return o


def torchs_kernel(q, k, v, num_tokens, group):
    if group.size == 1:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return ring(q, k, v, num_tokens, group)


def gathers(q, k, v, num_tokens, group):
    group.all_gather(k)


WRONG = {
    returns_nothing: "returns nothing",
    returns_a_list: "returns something that is no tensor",
    returns_a_sparse_tensor: "returns something that is no tensor",
    returns_float32: "returns another dtype",
    returns_the_heads_last: "returns another shape",
    returns_nan: "computes with a block that has not come",
    the_other_way_around: "sends to others than its right neighbour",
    a_dummy_before_it_posts: "computes too little while blocks travel",
    after_products_of_one_query: "computes too little while blocks travel",
    after_exponentials_of_enough_numbers: "computes too little while blocks travel",
    in_numpy: "gathers all blocks before it computes",
    blocking_send_after_irecv: "waits for its send before it computes",
    torchs_kernel: "calls the answer itself",
    gathers: "calls a library collective",
}


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_ways_around_it_are_refused_by_name(program):
    verdict = check(NAME, program, workspace=WORKSPACE)
    assert verdict.diagnosis == WRONG[program], verdict


def is_close(one, other, most):
    pairs = zip(one, other, strict=True)
    return all(
        bool(((a.double() - b).nan_to_num(1e9, 1e9, 1e9).abs() <= most).all()) for a, b in pairs
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_blocks_with_causal_masks_make_attention(world_size):
    for case in random_cases(world_size, random.Random(world_size)):
        given = given_in(case)
        right = [output(given, rank, causal(given)) for rank in range(world_size)]
        assert is_close(right, given.expected, given.tolerance)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_each_mistake_shows_and_looks_like_no_other(world_size):
    cases = [given_in(case) for case in random_cases(world_size, random.Random(7))][:3]
    of_case = [mistakes(given) for given in cases]
    found = {}
    for given, all_of in zip(cases, of_case):
        ranks = range(world_size)
        outputs = [[each.output(rank).nan_to_num(0, 0, 0) for rank in ranks] for each in all_of]
        shows = [not is_close(each, given.expected, given.tolerance) for each in outputs]
        for mistake, its, does in zip(all_of, outputs, shows):
            if not does or mistake.name in found:
                continue
            alike = (
                other.name
                for other, values, its_shows in zip(all_of, outputs, shows)
                if its_shows and is_close(values, its, given.tolerance)
            )
            found[mistake.name] = next(alike)
    for name, first in found.items():
        assert name == first or (world_size, name) in SAME_WITH_TWO, (name, first)
    if world_size > 2:
        assert {each.name for each in of_case[0]} - set(found) <= HARMLESS_HERE


# On two ranks two mistakes can be one: there is only one block besides the own one.
SAME_WITH_TWO = {(2, "attends to its own block only"), (2, "only the last block counts")}
# Its own scale is the right one here, and every query sees a key of the first block.
HARMLESS_HERE = {
    "takes a scale of its own",
    "begins with a maximum of 0",
    "masks with a number that scores reach",
}


def test_inputs_have_shares_that_differ_and_scores_that_overflow():
    for world_size in (2, 3, 4):
        even, uneven, large, late, altered = random_cases(world_size, random.Random(1))
        assert len(set(given_in(even).sizes)) == 1
        assert len(set(given_in(uneven).sizes)) == len(set(given_in(late).sizes)) == 2
        given = given_in(large)
        scores = given.q[0] @ given.k[0].mT * given.num_features**-0.5
        assert scores.exp().isinf().any()
        assert max(late.delays_s) > 0 and altered.altered[0] > 0
        assert min(given.sizes) > 2 * given.num_features


def test_messages_are_counted_as_blocks_or_halves_of_them():
    class Sent:
        def __init__(self, payload_bytes):
            self.payload_bytes = payload_bytes

    def taken(sizes):
        return [len(each) for each in blocks_of([Sent(size) for size in sizes], [80, 80, 64])]

    assert taken([80, 80, 64]) == [1, 1, 1] and taken([40, 40, 80, 32, 32]) == [2, 1, 2]
    assert taken([80, 64, 80]) == [1] and taken([40, 20, 20]) == [] and taken([]) == []
