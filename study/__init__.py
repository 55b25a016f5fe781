"""Learning over many seeds: `python -m study` trains, evaluates and writes RESULTS.md."""
