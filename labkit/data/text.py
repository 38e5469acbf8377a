"""Real text as bytes, and equal batches of it on every rank.

A token is a byte: the vocabulary has 256 entries and nothing needs to be trained or downloaded.
A batch depends on (seed, step) only. Every rank draws the same global batch and keeps its share,
so nothing has to be sent, and the shares together are the serial batch, whatever the world size:

    7 sequences over 3 ranks     0 1 2 | 3 4 | 5 6       torch.tensor_split's rule
"""

import functools
import gzip
import zlib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import torch
from torch import Tensor

_TEXT = "standard_library.txt.gz"
# Bytes that are rare in text files, and 11% of compressed or executable ones.
_CONTROL_BYTES = bytes({*range(32), 127} - {*b"\t\n\r\f\b\x1b"})


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as a tensor of bytes. `name`: its source; `bytes_N` is uint8."""

    name: str
    bytes_N: Tensor = field(repr=False)

    @staticmethod
    @functools.cache
    def standard_library(max_bytes: int = 1_000_000) -> "Corpus":
        """Return the first bytes, at most 1,000,000, of the modules of Python's standard library.

        The public top-level modules of Python 3.11.7, by name. They come with labkit: the library
        of another Python has another text, and gives other losses. Kept after the first call of a
        process.
        """
        text = gzip.decompress(resources.files("labkit").joinpath(_TEXT).read_bytes())
        return Corpus("Python's standard library", _as_tensor(text[:max_bytes]))

    @staticmethod
    def from_file(path: str | Path, max_bytes: int = 4_000_000) -> "Corpus":
        """Return the first `max_bytes` of a text file, in any encoding without NUL bytes.

        Raises OSError for a file that cannot be read, ValueError for one that is empty or not text.
        """
        path = Path(path).expanduser()
        if path.is_fifo() or path.is_char_device():  # reading a pipe or a terminal might never end
            raise ValueError(f"{path} is a device or a pipe; pass a regular file")
        with path.open("rb") as file:
            text = file.read(max_bytes)
        if not text:
            raise ValueError(f"{path} is empty; a corpus needs text, a few KB at least")
        num_control_bytes = len(text) - len(text.translate(None, _CONTROL_BYTES))
        if 0 in text or num_control_bytes > 0.01 * len(text):
            raise ValueError(
                f"{path} is not text: of its first {len(text)} bytes {num_control_bytes} are "
                f"control characters, {text.count(0)} of those NUL; pass plain text, as UTF-8"
            )
        return Corpus(str(path), _as_tensor(text))

    def __len__(self) -> int:
        return self.bytes_N.numel()


def _as_tensor(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


IGNORED = -100
"""A target that does not count in a loss: padding, or a prompt. It is torch's `ignore_index`."""


def counted(targets: Tensor) -> Tensor:
    """Return a mask of the targets that count in a mean loss: all that are not IGNORED."""
    return targets != IGNORED


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences and the next token at each place: targets_BT[b, t] is inputs_BT[b, t + 1].

    A target may be IGNORED. The loss is the mean over the others, in one process and on many ranks.
    """

    inputs_BT: Tensor  # int64
    targets_BT: Tensor  # int64

    def __len__(self) -> int:
        return self.inputs_BT.shape[0]

    @property
    def num_targets(self) -> int:
        """Number of targets that count, which is a share's weight in the loss of the batch."""
        return int(counted(self.targets_BT).sum())

    def share(self, rank: int, size: int) -> "Batch":
        """Return sequences of one rank of `size`; the first len(self) % size ranks have one more.

        A share is empty if there are more ranks than sequences.
        """
        if not 0 <= rank < size:
            raise ValueError(f"rank={rank} is not one of {size} ranks; pass 0 to {size - 1}")
        inputs, targets = (x.tensor_split(size)[rank] for x in (self.inputs_BT, self.targets_BT))
        return Batch(inputs, targets)

    def to(self, device: torch.device | str) -> "Batch":
        """Return the same batch on another device."""
        return Batch(self.inputs_BT.to(device), self.targets_BT.to(device))


@dataclass(frozen=True)
class Batches:
    """The global batches of a training run: `num_sequences` of `context` tokens at every step.

    Raises ValueError for a corpus that is shorter than one sequence and its last target.
    """

    corpus: Corpus
    num_sequences: int
    context: int
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.corpus) <= self.context:
            raise ValueError(
                f"{self.corpus.name} has {len(self.corpus)} bytes, and one sequence of "
                f"context={self.context} needs {self.context + 1}; take a longer text or a shorter "
                "context"
            )

    def at(self, step: int) -> Batch:
        """Return the global batch of a step: windows at random places, the same on every rank."""
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed}/{step}".encode()))
        # one more token than the context: the target of the last one
        windows_NT = self.corpus.bytes_N.unfold(0, self.context + 1, 1)
        size = (self.num_sequences,)
        starts_B = torch.randint(len(windows_NT), size, generator=generator, device="cpu")
        windows_BT = windows_NT[starts_B].long()
        return Batch(windows_BT[:, :-1], windows_BT[:, 1:])
