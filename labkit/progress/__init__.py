"""The learner's memory: what happened, what is due, how far they are. One SQLite file.

    record("hint", "scan", number=1)            something happened; `events()` reads it back
    practice.answer("card/co-8", "good")        an answer: stored, and its subject scheduled anew
    statistics.streak()                         days in a row, mastery by topic, ...
    exchange.export_json(path)                  every event, for a backup or another machine

Bottom to top: clock.py and clock.py; event.py; scheduling.py and scheduling.py make states out of
answers; store.py opens the file (store.py, store.py) and runs transactions; practice.py and practice.py
write down what happens.
Nothing here needs torch, and whatever goes wrong with the file is a ProgressWarning: the work goes
on without a memory.
"""

from labkit.progress.clock import ProgressWarning, home
from labkit.progress.event import Event
from labkit.progress.practice import events, record

__all__ = ["Event", "ProgressWarning", "events", "home", "record"]
