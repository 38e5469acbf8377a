"""Which layers go to which stage of a pipeline.

An interviewer asks: "32 blocks on four stages are 8 and 8 and 8 and 8. Now there is an embedding in
front, which costs nothing, and a head over 128,000 words, which costs as much as five blocks. How
do you cut? Find the best cut for any costs. And for 200 layers on 16 stages?"

Write `balance(costs, num_stages)`. A pipeline goes at the pace of its slowest stage: of all cuts,
yours makes the slowest stage, the one whose layers cost most together, as cheap as can be.

    costs       1 4 4 4 4 9                             slowest
    by number   [1 4] [4 4] [4 9]                       13
    the best    [1 4 4] [4 4] [9]  (or another)          9

Contract
    costs       a list of whole numbers, 0 or more: what each layer costs, in order, with embedding
                and head, for example in FLOPs (so they may be large). It is left as it is
    num_stages  1 to len(costs)
    returns     a list of num_stages lists: by stage, the numbers of its layers, counted from 0, in
                order; such as [[0, 1, 2], [3, 4], [5]]. (A range does for a list.) Each stage has
                at least one layer, its layers are neighbours, and each layer is in one stage.
                Where several cuts are best, any of them
    exact       no cut is better, not by 1
    never       labkit.pipeline

Budget
    200 layers on 16 stages, in a second or two. There are 10**22 cuts: who tries them all does not
    come to an end
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    """By stage, its layers; the slowest stage is as cheap as can be."""

    raise NotImplementedError("not attempted yet: your code replaces this line")
