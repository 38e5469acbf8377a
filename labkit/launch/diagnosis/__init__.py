"""Which error a run ends with, once the doctor has spoken."""
