"""Bytes that a rank holds while it trains: model states, activations, caches.

model_state.py   parameters, gradients and optimizer states, by recipe and ZeRO's level
activations.py   of the layers
loss.py          of the head and the loss
footprint.py     all of it on one GPU
torch_buffers.py what torch's tensor and pipeline parallelism hold beside it
fit.py           the smallest change with which it fits
kv_cache.py      keys and values of sequences that are served
"""
