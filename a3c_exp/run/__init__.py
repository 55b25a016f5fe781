"""One run, from an experiment to its summary: training, evaluation, checkpoints, curves, log."""
