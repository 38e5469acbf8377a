"""Mutant: no checkpoint at all.

outcome: "over budget"
diagnosis: "keeps the activations"
"""

import torch


def checkpointed(block, x):
    return block(x)
