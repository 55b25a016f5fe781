"""Speed and memory, measured beside what they are compared with: `python -m evidence.bench`.

Wall-clock figures of one machine at one moment: they belong into a table, not into tests.
"""
