"""The queue between engines and trainers: prompts out, answers in, of bounded staleness.

    version v     groups v P ... v P + P - 1 become update number v (P groups each)
    an engine     with weights of version w may start group i if   i < (w + staleness + 1) P

So a group that starts with version w is used by version w + staleness at the latest: the bound
holds for each rollout, whatever the engines' speeds. Staleness 0 is synchronous: all groups of a
version start with its weights, and engines are idle while trainers work. Staleness 1 is one step
off: engines work on the next batch meanwhile. More is asynchronous.

Order. Groups enter the rollout bank in the order of their numbers, all answers of a group at once.
A group that ends early waits for those before it. So entry n of the bank is always answer n, and
after a kill the cursor of the bank is all that a job needs: it starts with the first group that is
not on the disk, and trains on the first one that the checkpoint's parameters have not used.

A stall. If trainers wait for answers, and every engine says that it has no work and may start
none, nothing can ever change: an answer was lost. The queue then stops all ranks, and names the
answers and the engine that they were given to. No clock is involved.

Threads: one for each engine receives its reports and sends replies; the trainers' rank 0 asks
`next_event` in its main thread. One condition guards everything.
Paper: Fu et al., AReaL, arXiv:2505.24298, section 4 (the rule for starts).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any

from labkit.checkpoint import Rollout, RolloutBank
from labkit.rl.completion import Completion
from labkit.rl.figures import NO_WEIGHTS
from labkit.rl.settings import Settings

Key = tuple[int, int]
"""Group and member of an answer."""


class AnswerQueue:
    """Prompts, answers and versions of a job, on rank 0."""

    def __init__(self, settings: Settings, bank: RolloutBank, num_engines: int) -> None:
        """bank: with the rollouts so far; its cursor is that of the loaded parameters."""
        self.settings, self.bank = settings, bank
        self.version = bank.consumed // settings.batch
        """The number of updates that the trainers have made."""
        self.published = NO_WEIGHTS
        self.reports: list[dict[str, Any]] = [{"version": NO_WEIGHTS}] * num_engines
        self.stalled = ""
        self._idle_s = [0.0] * num_engines
        self._waits_since: dict[int, float] = {}
        self._expected: set[int] = set()  # engines that have not installed `published` yet
        self._slept: set[tuple[int, int]] = set()
        self._next_group = self._next_in_bank = len(bank) // settings.group_size
        self._to_start: deque[Key] = deque()
        self._given_to: dict[Key, int] = {}
        self._done: dict[int, list[Completion]] = {}
        self._changed = threading.Condition()
        self._idle: set[int] = set()  # engines without anything to do
        self._trainers_wait = False
        self._is_over = False
        self._error: BaseException | None = None

    def reply(self, engine: int, report: dict[str, Any]) -> dict[str, Any]:
        """Take an engine's report; return when there is something for it to do."""
        with self._changed:
            self.take(engine, report)
            while True:
                if self._error or self._is_over and engine not in self._expected:
                    return {"stop": True}
                has_weights = report["version"] != NO_WEIGHTS
                can_change = self.settings.is_partial or not (report["unfinished"] and has_weights)
                if engine in self._expected and (can_change or self._is_over):
                    return {"update": self.published}
                if self._must_sleep(engine, report["version"]):
                    return {"is_sleep": True}
                start = [] if engine in self._expected else self._start(engine, report)
                if start or (report["unfinished"] and has_weights):
                    return {"start": start}
                self._idle.add(engine)
                self._find_stall()
                self._waits_since[engine] = time.perf_counter()
                self._changed.wait()
                self._count_idle(engine)
                del self._waits_since[engine]

    def take(self, engine: int, report: dict[str, Any]) -> None:
        """Take an engine's report. Groups that are complete enter the bank, in order."""
        with self._changed:
            if engine in self._expected and report["version"] == self.published:
                self._expected.discard(engine)
            self.reports[engine] = report
            for plain in report["completed"]:
                completion = Completion(**plain)
                del self._given_to[completion.group, completion.member]
                self._done.setdefault(completion.group, []).append(completion)
            while len(group := self._done.get(self._next_in_bank, [])) == self.settings.group_size:
                group.sort(key=lambda each: each.member)
                self.bank.append([Rollout(max(each.versions), each.to_bytes()) for each in group])
                del self._done[self._next_in_bank]
                self._next_in_bank += 1
            self._wake()

    def next_event(self) -> tuple[str, list[Completion]]:
        """Return what the trainers do next: "publish", "train" with answers, or "stop"."""
        with self._changed:
            while True:
                if self._error:
                    raise RuntimeError("a thread of the queue has failed") from self._error
                if self.stalled or self.version == self.settings.num_updates:
                    self._is_over = True
                    self._changed.notify_all()
                    return "stop", []
                if self._must_publish():
                    self.published = self.version
                    self._expected = set(range(len(self.reports)))
                    self._wake()
                    return "publish", []
                if self.bank.num_left >= self.settings.batch:
                    return "train", self._batch()
                self._trainers_wait = True
                self._find_stall()
                if not self.stalled:
                    self._changed.wait()

    def stepped(self) -> None:
        """Count an update of the trainers."""
        with self._changed:
            self.version += 1

    def snapshots(self) -> list[dict[str, Any]]:
        """Return what each engine reported last of itself, with idle seconds since the last call.

        By engine: "idle_s", "version", "served_norm", "probe", and "probed", the probe's version.
        """
        keys = ("version", "served_norm", "probe", "probed")
        with self._changed:
            for engine in self._waits_since:
                self._count_idle(engine)
            found = [{key: report.get(key) for key in keys} for report in self.reports]
            for engine, each in enumerate(found):
                each["idle_s"], self._idle_s[engine] = self._idle_s[engine], 0.0
        return found

    def fail(self, error: BaseException) -> None:
        """End all waits: a thread has failed."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _count_idle(self, engine: int) -> None:
        now_s = time.perf_counter()
        self._idle_s[engine] += now_s - self._waits_since[engine]
        self._waits_since[engine] = now_s

    def _wake(self) -> None:
        """Let all threads look again: something has changed."""
        self._idle.clear()
        self._trainers_wait = False
        self._changed.notify_all()

    def _start(self, engine: int, report: dict[str, Any]) -> list[Key]:
        """Return answers that an engine starts now, and count them as given to it."""
        settings, version = self.settings, report["version"]
        if version == NO_WEIGHTS:
            return []
        limit = min(version + settings.staleness + 1, settings.num_updates) * settings.num_prompts
        start: list[Key] = []
        while len(start) < settings.in_flight - report["unfinished"]:
            if not self._to_start:
                if self._next_group >= limit:
                    break
                members = range(settings.group_size)
                self._to_start.extend((self._next_group, member) for member in members)
                self._next_group += 1
            if self._to_start[0][0] >= limit:  # another engine's newer weights allowed the group
                break
            start.append(self._to_start.popleft())
            self._given_to[start[-1]] = engine
        return start

    def _must_publish(self) -> bool:
        """Return whether engines need weights: a newer version, or after a sleep."""
        if self._expected:
            return False  # one update at a time
        if self.published == NO_WEIGHTS:
            return True
        is_asleep = any(report["version"] == NO_WEIGHTS for report in self.reports)
        return is_asleep or self.version - self.published >= self.settings.sync_every

    def _must_sleep(self, engine: int, version: int) -> bool:
        """Return whether the engine sleeps now; once for each version that sleep_every divides."""
        every, key = self.settings.sleep_every, (engine, version)
        if not every or version < 1 or version % every or key in self._slept:
            return False
        self._slept.add(key)
        return True

    def _batch(self) -> list[Completion]:
        rollouts = self.bank.take(self.settings.batch)
        return [Completion.from_bytes(each.payload) for each in rollouts]

    def _find_stall(self) -> None:
        """Notice that nothing can change any more."""
        if not self._trainers_wait or len(self._idle) < len(self.reports) or self._is_over:
            return
        limit = (self.version + 1) * self.settings.num_prompts
        lost = sorted(key for key in self._given_to if key[0] < limit)
        engines = sorted({self._given_to[key] for key in lost})
        self.stalled = (
            f"update {self.version} waits for {len(lost)} answers, the first of them "
            f"{lost[:1]} (group, member), given to {'engine ' + str(engines)[1:-1]}. No engine has "
            "work, so they can never come. Give an engine at most max_running answers at a time, "
            "or ask again after a QueueFull"
        )
        self._changed.notify_all()
