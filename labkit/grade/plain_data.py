"""Tensors, numbers, text and lists of them as bytes, and back; nothing else can come back.

Unpickling arbitrary bytes runs arbitrary code; this refuses everything that would need a class or
a function. For the small records of a check it takes a tenth of torch.save's time.
"""

import ctypes
import io
import numbers
import pickle
from typing import Any, NoReturn

import torch

_TENSOR = "tensor"


def dumps(value: Any) -> bytes:
    """`value` as bytes. Dicts may have any plain keys; tensors are on the CPU and dense."""
    return pickle.dumps(_packed(value), protocol=pickle.HIGHEST_PROTOCOL)


def loads(data: bytes) -> Any:
    """The value behind `data`. Raises pickle.UnpicklingError for what is not plain data."""
    return _unpacked(_PlainUnpickler(io.BytesIO(data)).load())


def number(value: Any) -> Any:
    """Python's own number, or boolean, for one of numpy's; else `value` itself."""
    if type(value).__module__ != "numpy":
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return bool(value) if type(value).__name__ in ("bool", "bool_") else value


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse: whatever needs a class or a function by name is not plain data."""
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def _packed(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous()
        content = ctypes.string_at(flat.data_ptr(), flat.nbytes) if flat.nbytes else b""
        return (_TENSOR, str(value.dtype).removeprefix("torch."), tuple(value.shape), content)
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_packed(item) for item in value]
    return value


def _unpacked(value: Any) -> Any:
    if isinstance(value, tuple) and value[:1] == (_TENSOR,):
        _, dtype, shape, content = value
        if not content:
            return torch.empty(shape, dtype=getattr(torch, dtype))
        flat = torch.frombuffer(bytearray(content), dtype=getattr(torch, dtype))
        return flat.reshape(shape)
    if isinstance(value, dict):
        return {key: _unpacked(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    return value
