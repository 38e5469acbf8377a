"""Bytes that a rank holds while it trains: model states, activations, caches.

model_state.py   parameters, gradients and optimizer states, by recipe and ZeRO's level
activations.py   of a layer, the head and the loss
footprint.py     all of it on one GPU
fit.py           the smallest change with which it fits
kv_cache.py      keys and values of sequences that are served
"""
