"""Decide which answers a generator may start, and which the trainer may still use.

An interviewer asks: "Generator and trainer of an RL system run at the same time. Old answers hurt,
so no answer may be more than 4 versions old when it is trained on. Where do you enforce that? What
happens to an answer that takes very long, and to its place?"

Write the class `BoundedStaleness(batch, bound)`. The policy has version 0 at the beginning, and the
next one after each update. An answer's version is the policy's when the answer is started: its
first tokens come from it. The staleness of an answer in an update is the policy's version before
the update, less the answer's. It may be at most `bound`.

Contract
    start()         the generator wants to start an answer. Returns its number, 0, 1, 2, ... in the
                    order of starts, or None if it may not start now
    finish(number)  the answer has ended; it waits to be trained on. Returns None
    update()        the trainer wants to make an update. Returns the numbers of `batch` answers that
                    have ended and were not used, those that ended first, in the order in which they
                    ended. The version grows by one. Returns None if there are fewer; then nothing
                    has happened, except that answers that are too old are dropped

    dropped         an answer that is too old for the next update, waiting or running, is never
                    used. It is dropped, and gives its place back: that is decided whenever start or
                    update is called. `finish` of a dropped answer changes nothing
    the gate        An answer may start if all answers that were started and not dropped, the new
                    one and those that were used included, fit into the updates up to the one that
                    begins at version + bound. Each takes `batch` of them. So if answers end in the
                    order of their start, none is dropped

    batch, bound    whole numbers, 1 or more, and 0 or more. With a bound of 0 generator and trainer
                    take turns
"""


class BoundedStaleness:
    """The answers of a job, from their start to the update that uses them."""

    def __init__(self, batch: int, bound: int) -> None:
        ### BEGIN SOLUTION
        self.batch, self.bound = batch, bound
        self.version = 0
        self.num_started = self.num_dropped = 0
        self.running: dict[int, int] = {}  # number -> version
        self.waiting: dict[int, int] = {}  # in the order of their ends
        ### END SOLUTION

    def start(self) -> int | None:
        """Return the number of a new answer; None: it may not start now."""
        ### BEGIN SOLUTION
        self.drop()
        room = (self.version + self.bound + 1) * self.batch
        if self.num_started - self.num_dropped >= room:
            return None
        number = self.num_started
        self.num_started += 1
        self.running[number] = self.version
        return number
        ### END SOLUTION

    def finish(self, number: int) -> None:
        """The answer has ended."""
        ### BEGIN SOLUTION
        if number in self.running:
            self.waiting[number] = self.running.pop(number)
        ### END SOLUTION

    def update(self) -> list[int] | None:
        """Return the answers of the next update; None if there are too few."""
        ### BEGIN SOLUTION
        self.drop()
        if len(self.waiting) < self.batch:
            return None
        used = list(self.waiting)[: self.batch]
        for number in used:
            del self.waiting[number]
        self.version += 1
        return used

    def drop(self) -> None:
        """Drop the answers that are too old for the next update."""
        for answers in (self.running, self.waiting):
            for number in [n for n, its in answers.items() if self.version - its > self.bound]:
                del answers[number]
                self.num_dropped += 1
        ### END SOLUTION
