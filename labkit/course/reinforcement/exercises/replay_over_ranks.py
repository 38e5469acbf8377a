"""Grade replay_over_ranks: rows and weights that each rank learns from, priorities, and bytes."""

from typing import Any

import torch

from labkit.grade import grader as g

WIDTH = 3
CHANGED = 1000.0
"""A learner's new priority is the number of the row, in its first column, above this."""


def cases(n: int, draw: g.Draw) -> list[g.Case]:
    """Unequal shards, an empty one, a shard with most of the priority, and a large one."""
    rng = draw.rng
    uneven = rng.sample(range(3, 12), n)
    return [
        case(draw, uneven, 6 * n, 0.5, [1] * n),
        case(draw, uneven, 6 * n, 1.0, rng.sample((1, 3, 9, 20), n)),
        case(draw, [0, *uneven[1:]] if n > 1 else uneven, 4 * n, 0.5, [1] * n),
        case(draw, [*uneven[:-1], 0] if n > 1 else uneven, 4 * n, 0.7, [1] * n),
        case(draw, [2] * n, 8 * n, 0.5, [1] * (n - 1) + [40]),
        case(draw, uneven, 2 * n, 0.0, [1] * n),
        case(draw, rng.sample(range(200, 300), n), 16 * n, 0.5, [1] * n),
    ]


def case(draw: g.Draw, nums: list[int], num_draws: int, beta: float, scales: list[int]) -> g.Case:
    """So many rows on each rank, with priorities around the rank's scale."""
    rng, first = draw.rng, 0
    rows, priorities = [], []
    for num, scale in zip(nums, scales):
        numbers = torch.arange(first, first + num, dtype=torch.float64)
        rows.append(torch.stack([numbers, *draw.same(WIDTH - 1, num).double()], 1))
        units = [scale * rng.randrange(2, 9) for _ in range(num)]
        priorities.append(torch.tensor(units, dtype=torch.float64))
        first += num
    total = int(sum(each.sum() for each in priorities))
    # In the middle between two ends, which are whole numbers.
    places = [rng.randrange(total) + 0.5 for _ in range(num_draws)]
    u_B = torch.tensor(places, dtype=torch.float64) / total
    label = f"{nums} rows, {num_draws} draws, beta = {beta}"
    return g.Case(label, g.ByRank(rows), g.ByRank(priorities), u_B, beta)


def drawn(
    rows: g.ByRank, priorities: g.ByRank, u_B: torch.Tensor, beta: float
) -> tuple[list[int], torch.Tensor, torch.Tensor]:
    """Return the row of each draw, and all rows and weights of the memory, in one process."""
    line, memory = torch.cat(priorities), torch.cat(rows)
    ends, total = line.cumsum(0).tolist(), line.sum()
    places = (u_B * total).tolist()
    found = [next(row for row, end in enumerate(ends) if end > place) for place in places]
    weights = (len(line) * line / total) ** -beta
    return found, memory, weights / weights.max()


def right(rows: g.ByRank, priorities: g.ByRank, u_B: torch.Tensor, beta: float) -> g.ByRank:
    """Return what each rank learns from, by row, and its priorities, without ranks."""
    found, memory, weights = drawn(rows, priorities, u_B, beta)
    after = torch.cat(priorities)
    after[sorted(set(found))] = torch.tensor(sorted(set(found))).double() + CHANGED
    n = len(rows)
    answers = []
    for rank, own in enumerate(after.split([len(each) for each in priorities])):
        learned = sorted(found[rank * len(found) // n : (rank + 1) * len(found) // n])
        answers.append((memory[learned], weights[learned], own))
    return g.ByRank(answers)


def call(watch: Any, args: tuple[Any, ...]) -> Any:
    """Call with a `learn` that keeps what it gets; return that by row, and the priorities."""
    learned: list[Any] = []

    def learn(rows: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        if learned:
            raise ValueError("learn is called a second time: call it once, with all B/n draws")
        if rows.dim() != 2 or rows.shape[1] != WIDTH or weights.shape != (len(rows),):
            shapes = f"rows {tuple(rows.shape)} and weights {tuple(weights.shape)}"
            raise ValueError(f"learn takes (B/n, {WIDTH}) and (B/n,), and got {shapes}")
        order = rows[:, 0].argsort(stable=True)
        learned.extend([rows[order].clone(), weights[order].clone()])
        return rows[:, 0] + CHANGED

    after = watch.function(*args, learn, watch.group)
    return (*learned, after)


def budget(s: g.Observed) -> g.Budget:
    """Rows and weights of draws for other ranks, 32 bytes to each, and priorities back."""
    if s.n == 1:
        return g.Budget()
    found = drawn(*s.args)[0]
    num_draws = len(found)
    first, most = 0, []
    for own in s.args[0]:
        owned = [k for k, row in enumerate(found) if first <= row < first + len(own)]
        first += len(own)
        # As on a ring: (n-1)/n of what a rank contributes, for any receiver.
        share = (s.n - 1) / s.n
        handed = len(owned) * 8 * (WIDTH + 1) + num_draws // s.n * 8
        most.append(share * handed + (s.n - 1) * 32)
    return g.Budget(collectives=4, sent_bytes=most)


def sends_more(s: g.Observed) -> bool:
    """Return whether a rank sends more than its budget."""
    most = budget(s).sent_bytes
    return isinstance(most, list) and any(s.sent_bytes(r) > most[r] for r in range(s.n))


OWNER = "torch.searchsorted(total_n.cumsum(0), place_B, right=True)"
LEARNER = "learner_B = torch.arange(len(u_B)) * group.size // len(u_B)"
PLACE = "place = place_B[is_mine_B] - total_n[: group.rank].sum()"
LARGEST = "largest = (num * smallest / total) ** -beta"
BY_SIZE = "(num * priorities_N[row] / total)"
BACK = "group.all_to_all(new, receive, send)"
MISTAKES = [
    g.Mistake(
        "draws as many rows from each shard",
        "Shards differ in their total priority. If each rank draws B/n rows from its own, a row in "
        "a shard with little priority is drawn too often. First choose the shard, by the totals.",
        g.patch(
            *(OWNER, "torch.arange(len(u_B)) * group.size // len(u_B)"),
            *(PLACE, "place = u_B[is_mine_B] * total_n[group.rank]"),
        ),
        hint=1,
    ),
    g.Mistake(
        "chooses the shard without the priorities",
        "Each shard gets draws in proportion to its total priority, not equally often, and not by "
        "its number of rows.",
        [
            g.patch(
                *(OWNER, "(u_B * group.size).long()"),
                *(PLACE, "place = (u_B * group.size % 1)[is_mine_B] * total_n[group.rank]"),
            ),
            g.patch(
                *(OWNER, "torch.searchsorted(num_n.cumsum(0), u_B * num, right=True)"),
                PLACE,
                "start = num_n[: group.rank].sum()\n    place = (u_B[is_mine_B] * num - start)"
                " / num_n[group.rank] * total_n[group.rank]",
            ),
        ],
        hint=1,
    ),
    g.Mistake(
        "does not subtract the shards before",
        "A place is counted from the beginning of rank 0's rows. Inside of a shard, subtract the "
        "totals of all ranks before it.",
        [
            g.patch(
                PLACE, "place = place_B[is_mine_B].clamp(max=total_n[group.rank].item() - 0.25)"
            ),
            g.patch(PLACE, "place = place_B[is_mine_B] % total_n[group.rank]"),
        ],
        hint=2,
    ),
    g.Mistake(
        "weights of the shard alone",
        "M and T are those of the whole memory. With a shard's own number of rows or own total, "
        "equal transitions on two ranks get different weights, and the gradient is biased.",
        g.patches(
            BY_SIZE,
            BY_SIZE.replace("num", "len(priorities_N)"),
            BY_SIZE.replace("total", "total_n[group.rank]"),
            "(len(priorities_N) * priorities_N[row] / total_n[group.rank])",
        ),
        hint=2,
    ),
    g.Mistake(
        "divides weights by another number than the memory's largest weight",
        "The largest weight is that of the smallest priority on any rank, drawn or not. A shard's "
        "own largest, or that of the rank's draws, differs from rank to rank.",
        [
            g.patch(
                LARGEST, "largest = (num * priorities_N.min() / total) ** -beta if len(row) else 1"
            ),
            g.patch(
                "group.all_to_all(weight, send, receive))",
                "(w := group.all_to_all(weight, send, receive)) / w.max())",
            ),
            g.patch(LARGEST, "largest = 1.0"),
        ],
        hint=2,
    ),
    g.Mistake(
        "gives frequent rows the larger weight",
        "A row that is drawn more often counts less each time: the exponent is -beta.",
        g.patch(
            "/ total) ** -beta / largest", "/ total) ** beta / (num * smallest / total) ** beta"
        ),
        hint=1,
    ),
    g.Mistake(
        "gives draws to other learners",
        "Rank r learns from draws r B/n to (r+1) B/n - 1: neighbours in u_B, not every n-th. Which "
        "rank owns a row does not matter.",
        g.patch(
            LEARNER,
            "learner_B = torch.arange(len(u_B)) % group.size\n"
            "    order = learner_B.argsort(stable=True)\n"
            "    place_B, owner_B, learner_B = place_B[order], owner_B[order], learner_B[order]",
        ),
        hint=3,
    ),
    g.Mistake(
        "keeps new priorities where they were computed",
        "The learner has a copy of the row, and the owner draws from its own priorities. Without "
        "the way back the owner goes on with old ones: send each to the rank that has the row.",
        [
            g.patch(f"    after_N[row] = {BACK}  #", "    pass  #"),
            g.patch(f"after_N[row] = {BACK}", "after_N[row[: len(new)]] = new[: len(row)]"),
        ],
        hint=1,
    ),
    g.Mistake(
        "sends new priorities in another order than the rows came",
        "The rows arrive by owner, and the priorities go back the same way, with the two splits "
        "exchanged. If you sort the draws in between, undo it afterwards.",
        g.patches(BACK, f"{BACK}.flip(0)", BACK.replace("new", "new.flip(0)")),
        hint=3,
    ),
    g.Mistake(
        "a rank without rows returns early",
        "It has no rows to send, and still learns from B/n draws. Every rank calls the same "
        "collectives, with splits of 0 where it has nothing.",
        g.patch(
            f"    {LARGEST}",
            f"    if not len(rows_NW):\n        return priorities_N.clone()\n    {LARGEST}",
        ),
        hung=lambda s: {len(own) for own, rank in zip(s.args[1], s.ranks) if rank.returned} == {0},
    ),
    g.Mistake(
        "sends rows to ranks that do not learn from them",
        "An all-gather sends each row to every rank. Every rank can compute the owner and the "
        "learner of each draw, so an all-to-all with uneven splits sends each row once.",
        g.patch(
            "rows = group.all_to_all(rows_NW[row], send, receive)",
            "num_max = int(owner_B.bincount().max())\n"
            "    padded = rows_NW.new_zeros(num_max, rows_NW.shape[1])\n"
            "    padded[: len(row)] = rows_NW[row]\n"
            "    blocks = group.all_gather(padded).view(group.size, num_max, -1)\n"
            "    rows = torch.cat([blocks[r][: int((owner_B == r).sum())]"
            "[learner_B[owner_B == r] == group.rank] for r in range(group.size)])",
        ),
        over_budget=sends_more,
    ),
]

GRADER = g.OnRanks(
    cases=cases,
    right=right,
    call=call,
    budget=budget,
    mistakes=MISTAKES,
    allowed=("all_gather", "all_to_all"),
    closed=("labkit.rl",),
    shown="ranks draw the rows that one memory draws, with its weights, send each to its learner "
    "only, and every priority is back with its owner",
)
