"""Faults that are caused in whole runs: see `python -m bench.faults`."""
