"""A unit of ZeRO-3: parameters that are gathered, used and released together."""

from functools import partial

from torch import Tensor

from labkit.collectives.wire import Wire
from labkit.comm import Group
from labkit.data_parallel.communication_thread import CommunicationThread, OnThread
from labkit.zero.flat import is_divided_before
from labkit.zero.flat_unit import FlatUnit


class Unit:
    """What one module gathers before it computes, and releases after."""

    def __init__(self, name: str, flats: list[FlatUnit]) -> None:
        self.name, self.flats = name, flats
        self.is_gathered = False
        self.in_backward = False
        """From the first gradient of its outputs to the last of its inputs."""
        self._gathering: OnThread[None] | None = None
        self._reducing: list[tuple[FlatUnit, OnThread[Tensor]]] = []

    @property
    def is_trained(self) -> bool:
        """Whether something in it has gradients."""
        return any(flat.shard.requires_grad for flat in self.flats)

    def begin_gather(self, thread: CommunicationThread, wire: Wire) -> None:
        """Begin, unless it is there or on its way."""
        if self.is_gathered or self._gathering is not None or not self.flats:
            return

        def gather(group: Group) -> None:
            for flat in self.flats:
                with group.label(f"weights of {self.name}"):
                    flat.gather(group, wire)

        self._gathering = thread.start(gather)

    def gather(self, thread: CommunicationThread, wire: Wire) -> None:
        """The parameters are there when this returns."""
        self.begin_gather(thread, wire)
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None
            for flat in self.flats:
                flat.show()
            self.is_gathered = True

    def release(self) -> None:
        """Free the gathered parameters; also those that came in vain."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None
        elif not self.is_gathered:
            return
        self.is_gathered = False
        for flat in self.flats:
            flat.release()

    @property
    def has_gradients(self) -> bool:
        """Whether some have arrived that are not reduced."""
        return any(flat.gradients is not None for flat in self.flats)

    def drop(self) -> None:
        """Release it, and forget gradients of a pass that has failed."""
        self.release()
        self.in_backward = False
        self._reducing = []
        for flat in self.flats:
            flat.handed_over()

    def begin_reduce(self, thread: CommunicationThread, wire: Wire, num_ranks: int) -> None:
        """Begin to reduce the gradients that have arrived, with zeros for others."""
        for flat in self.flats:
            gradients = flat.handed_over()
            if gradients is not None:
                if is_divided_before(gradients.dtype):
                    gradients.div_(num_ranks)
                reduce = partial(_reduce, gradients, self.name, wire)
                self._reducing.append((flat, thread.start(reduce)))

    def finish_reduce(self, num_ranks: int) -> None:
        """Wait for them, and add the segments to the shards' gradients."""
        while self._reducing:
            flat, handle = self._reducing.pop(0)
            flat.keep(handle.wait(), num_ranks)


def _reduce(gradients: Tensor, name: str, wire: Wire, group: Group) -> Tensor:
    # A copy of the segment: the rest is freed here, before the thread gathers the next unit.
    with group.label(f"gradients of {name}"):
        segment: Tensor = wire.reduce_scatter(gradients, group, in_place=True).wait()
        return segment.clone()
