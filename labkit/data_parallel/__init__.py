"""Data parallelism: every rank has the whole model, and computes on its share of the batch."""

from labkit.data_parallel.naive import AllReduce, NaiveDDP, library_all_reduce, train, train_step

__all__ = ["AllReduce", "NaiveDDP", "library_all_reduce", "train", "train_step"]
