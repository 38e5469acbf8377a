"""Mutant: cuts in two, and each part again.

outcome: "wrong"
diagnosis: "halves, and halves again"
"""


def balance(costs: list[int], num_stages: int) -> list[list[int]]:
    def cut(start: int, stop: int, p: int) -> list[list[int]]:
        if p == 1:
            return [list(range(start, stop))]
        left, right = p // 2, p - p // 2
        at = min(
            range(start + left, stop - right + 1),
            key=lambda i: max(sum(costs[start:i]) / left, sum(costs[i:stop]) / right),
        )
        return cut(start, at, left) + cut(at, stop, right)

    return cut(0, len(costs), num_stages)
