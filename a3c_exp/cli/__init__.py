"""The command line: training, sweeps, resumed runs, evaluation, reports."""
