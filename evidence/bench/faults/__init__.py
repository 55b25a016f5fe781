"""Faults that are caused in whole runs: see `python -m evidence.bench.faults`."""
