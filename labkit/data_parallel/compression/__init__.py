"""Gradients made smaller before they travel: plug-ins of DDP.

    model = DDP(module, world, TopK(0.01))

What a compressor leaves out of a gradient is not lost: it is kept, and added to the next one.
"""

from labkit.data_parallel.compression.feedback import Compressor
from labkit.data_parallel.compression.one_bit import OneBit
from labkit.data_parallel.compression.power_sgd import PowerSGD
from labkit.data_parallel.compression.top_k import TopK

__all__ = ["Compressor", "OneBit", "PowerSGD", "TopK"]
