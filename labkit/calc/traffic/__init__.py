"""Bytes, messages, steps and seconds of collectives, and of what strategies send.

cost.py         the alpha-beta model, chunks and blocks: what all algorithms share
rings.py        rings, halving-doubling, hierarchical, all-to-all
trees.py        trees, double trees, gather and scatter
collective.py   `collective("all_reduce", "ring", ...)`: one of them by name
step.py         an optimizer step of data parallelism, a pipeline, 3D training
fsdp.py         FSDP2 by its switches, gathers of 8 bits, buckets
tensor.py       tensor parallelism; context.py: context parallelism
boosting.py     a level of gradient-boosted trees
"""
