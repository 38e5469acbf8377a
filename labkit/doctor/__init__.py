"""The doctor: what ranks are known to do goes in, a verdict comes out. Nothing here starts a rank.

    journals, stacks, torch's record  ->  View (waiting.py)  ->  wait-for graph  ->  Verdict

Read in this order: verdict.py; waiting.py, the wait-for graph; diagnose.py, the rules in their
order; position.py, the table below a verdict. stacks.py reads faulthandler's output, halt.py finds
stopped processes, and sources.py names lines as a reader sees them, `cell 7, line 12`.
"""

from labkit.doctor.diagnose import diagnose, diagnose_now, diagnose_waits
from labkit.doctor.verdict import Fault, Verdict
from labkit.doctor.waiting import View

__all__ = ["Fault", "Verdict", "View", "diagnose", "diagnose_now", "diagnose_waits"]
