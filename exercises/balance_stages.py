"""Which layers go to which stage of a pipeline.

An interviewer asks: "32 blocks on four stages are 8, 8, 8 and 8. Now there is an embedding in
front, which costs nothing, and a head over 128,000 words, which costs as much as five blocks. How
do you cut? Find the best cut for any costs. And for 200 layers on 16 stages?"

Write `balance(costs, num_stages)`. A pipeline runs at the speed of its slowest stage. The slowest
stage is the one whose layers have the largest sum of costs. The best cut makes this sum as small as
possible.

    costs       1 4 4 4 4 9                             slowest
    by number   [1 4] [4 4] [4 9]                       13
    the best    [1 4 4] [4 4] [9]  (or another)          9

Contract
    costs       a list of whole numbers, 0 or more: the cost of each layer in order, with embedding
                and head, for example in FLOPs. They may be larger than 2**53. Leave it unchanged
    num_stages  1 to len(costs)
    returns     a list of num_stages lists: for each stage the numbers of its layers, counted from
                0, in order, such as [[0, 1, 2], [3, 4], [5]]. A range instead of a list is fine.
                Each stage has at least one layer, its layers are neighbours, and each layer is in
                exactly one stage. If several cuts are best, return any of them
    exact       no cut has a smaller slowest stage, not even by 1
    never       labkit.pipeline

Budget
    200 layers on 16 stages within a second or two. There are 10**22 cuts, so trying all of them
    does not end
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    """Return the layers of each stage, with the cheapest possible slowest stage."""

    raise NotImplementedError("not attempted yet: your code replaces this line")
