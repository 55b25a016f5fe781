"""Learning over many seeds: `python -m evidence.study` trains, evaluates and writes RESULTS.md and
the pages of evidence/results/."""
