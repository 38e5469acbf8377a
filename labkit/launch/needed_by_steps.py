"""What torch imports when it is first needed, which for ranks is in their first step.

SymPy at the first gradient handed to backward(), Dynamo at the first optimizer or checkpointed
block: a second of computing for each rank, amid whatever is measured. The fork server imports this
module instead, once. With garbage collection, which finds nothing in modules that stay, the imports
take half as long again.
"""

import contextlib
import gc
import os

was_on = gc.isenabled()
gc.disable()
# Dynamo makes the folder of Inductor's cache, for whoever compiles. It is made again when needed.
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
is_set = _CACHE in os.environ
try:
    import torch._dynamo
    import torch.fx.experimental.symbolic_shapes  # noqa: F401
finally:
    if was_on:
        gc.enable()
    if not is_set and _CACHE in os.environ:
        with contextlib.suppress(OSError):  # it is in use
            os.rmdir(os.environ.pop(_CACHE))
