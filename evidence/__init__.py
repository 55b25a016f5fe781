"""The evidence for this project: benchmarks, studies over seeds, their records, and notes."""
