"""Mutant: 6 N, and no scores.

outcome: "wrong"
diagnosis: "counts no scores"
"""


def flops_per_token(model, sequence):
    return 3 * matrices(model)


def matrices(model):
    attention = 2 * model["hidden"] * model["head_dim"] * (model["heads"] + model["kv_heads"])
    mlp = (3 if model["gated"] else 2) * model["hidden"] * model["ffn"]
    return 2 * (model["layers"] * (attention + mlp) + model["hidden"] * model["vocab"])


def scores(model, sequence):
    return 4 * model["layers"] * model["heads"] * model["head_dim"] * sequence


def share(operations, run):
    devices = run["num_devices"]
    tokens_per_s = run["tokens_per_s"] * (devices if run["logged_by"] == "device" else 1)
    peak = run["peak"] / (2 if run["sparsity"] else 1)
    return tokens_per_s * operations / (devices * peak)


def mfu(model, run):
    return share(flops_per_token(model, run["sequence"]), run)


def hfu(model, run):
    again = 0.0
    if run["recompute"] != "none":
        again += scores(model, run["sequence"])
    if run["recompute"] == "full":
        again += matrices(model)
    return share(flops_per_token(model, run["sequence"]) + again, run)
