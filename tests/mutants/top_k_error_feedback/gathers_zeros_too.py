"""Mutant: writes the entries into zeros and gathers these.

outcome: "over budget"
diagnosis: "sends the whole gradient"
"""


def compress(gradient, owed, k):
    due = gradient + owed
    indices = due.abs().topk(k).indices
    values = due[indices]
    due[indices] = 0
    return indices, values, due


def exchange(indices, values, numel, group):
    sent = values.new_zeros(1, numel)
    sent[0, indices] = values
    return group.all_gather(sent).sum(0) / group.size
