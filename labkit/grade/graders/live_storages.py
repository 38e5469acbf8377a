"""Bytes of the storages that operators make, for as long as they live.

Less than labkit.memory's Meter, and without its hooks on saved tensors: with such hooks a Function
finds other tensors in ctx.saved_tensors than without, and a wrong answer may come out right.
"""

import gc
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.grade.gate import Gate
from labkit.grade.graders.patience import Patience


class LiveStorages(TorchDispatchMode):
    """Inside `with LiveStorages(known) as live:`, all storages but the known ones are counted."""

    def __init__(
        self,
        known: Iterable[Tensor] = (),
        gate: Gate | None = None,
        allowed_bytes: float = math.inf,
    ) -> None:
        """known: not counted, such as parameters; kept alive until this object is gone.

        gate: what is made while it is open, belongs to the backend: gloo copies what it sends. A
        result counts from the first operator on. allowed_bytes: where there is more, it is waited
        for a moment: a backend's thread lets go of a tensor a little after it is done.
        """
        super().__init__()
        self._gate, self._allowed_bytes, self._patience = gate, allowed_bytes, Patience()
        self._known = {each.untyped_storage()._cdata: each for each in known}
        self._live: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        gc.freeze()  # collections look at what is made from here on: they take a tenth of the time
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        gc.unfreeze()

    @property
    def nbytes(self) -> int:
        """Of all that is alive now; what only circles hold is not."""
        gc.collect()
        return self._count()

    def storages(self) -> list[torch.UntypedStorage]:
        """Those on the CPU that are counted now, and are not empty."""
        alive = (ref() for ref in list(self._live.values()))
        there = [storage for storage in alive if storage is not None and storage.nbytes()]
        return [storage for storage in there if storage.device.type == "cpu"]

    def _count(self) -> int:
        alive = (ref() for ref in list(self._live.values()))
        return sum(storage.nbytes() for storage in alive if storage is not None)

    def _settled(self) -> int:
        """What is alive, less what somebody else is about to let go of."""
        count = self._count()
        if count > self._allowed_bytes:
            self._patience.wait_while(lambda: self._count() > self._allowed_bytes)
            count = self._count()
        return count

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True, the default, imports torch._dynamo: 3 seconds

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Perform `func`, and follow what it returns."""
        result = func(*args, **(kwargs or {}))
        if self._gate is not None and self._gate.is_open:
            return result
        for each in tree_leaves(result):
            if isinstance(each, Tensor) and each.layout is torch.strided:
                self._follow(each.untyped_storage())
        self.peak_bytes = max(self.peak_bytes, self._settled())
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._known and key not in self._live:
            self._live[key] = weakref.ref(storage, lambda _: self._live.pop(key, None))
