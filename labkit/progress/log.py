"""What a learner has done so far: checks, hints, solutions shown, predictions, answers.

Events are only ever added: whatever else the store holds follows from them.
"""

from typing import Any

from labkit.progress import clock, store
from labkit.progress.event import Event, insert, select
from labkit.progress.trouble import or_warn

NOT_WRITTEN = "could not be written, so this is not remembered"
NOT_READ = "could not be read, so earlier progress does not show"


def record(kind: str, subject: str, **detail: Any) -> None:
    """Remember that something happened now. `detail`: what JSON can hold. Never raises."""
    event = Event(clock.now_s(), kind, subject, detail)
    or_warn(lambda: store.writing(lambda opened: insert(opened, event)), NOT_WRITTEN, "")


def events(subject: str | None = None, kind: str | None = None) -> list[Event]:
    """What happened, oldest first; of one subject and of one kind where given. Never raises."""
    return or_warn(
        lambda: store.reading(lambda opened: select(opened, subject, kind)), NOT_READ, []
    )
