"""The learner's memory: what happened, what is due, how far they are. One SQLite file.

    record("hint", "scan", number=1)            something happened; `events()` reads it back
    practice.answer("card/co-8", "good")        an answer: stored, and its subject scheduled anew
    statistics.streak()                         days in a row, mastery by topic, ...
    exchange.export_json(path)                  every event, for a backup or another machine

Bottom to top: home.py and clock.py; event.py; scheduling.py and states.py make states out of
answers; store.py opens the file (schema.py, damage.py) and runs transactions; log.py and graded.py
write down what happens.
Nothing here needs torch, and whatever goes wrong with the file is a ProgressWarning: the work goes
on without a memory.
"""

from labkit.progress.event import Event
from labkit.progress.home import home
from labkit.progress.log import events, record
from labkit.progress.trouble import ProgressWarning

__all__ = ["Event", "ProgressWarning", "events", "home", "record"]
