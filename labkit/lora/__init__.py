"""LoRA: adapters of low rank beside frozen weights, in one process and on ranks.

Read in this order:

    layer.py       an adapter beside a linear layer; several adapters, each for its own rows
    sharded.py     beside ColumnLinear and RowLinear: which half of an adapter is sharded
    adapters.py    adapters of a whole model: added, chosen by row, merged into the weights
    jobs.py        several adapters trained in one pass, each as if it were alone; what full
                   training, LoRA and LoRA on a quantised base hold and send

DDP and ZeRO-3 need nothing of this room: they leave frozen parameters out of what they reduce.
Add the adapters before you wrap the module.
"""

from labkit.lora.adapters import (
    adapter_names,
    adapter_parameters,
    add_adapter,
    lora_layers,
    merge,
    unmerge,
    use_adapters,
)
from labkit.lora.jobs import METHODS, AdapterJobs, measure_methods, prepare
from labkit.lora.layer import Adapter, LoRALinear
from labkit.lora.sharded import ShardedAdapter, ShardedLoRALinear, shard_linears

__all__ = [
    "METHODS",
    "Adapter",
    "AdapterJobs",
    "LoRALinear",
    "ShardedAdapter",
    "ShardedLoRALinear",
    "adapter_names",
    "adapter_parameters",
    "add_adapter",
    "lora_layers",
    "measure_methods",
    "merge",
    "prepare",
    "shard_linears",
    "unmerge",
    "use_adapters",
]
