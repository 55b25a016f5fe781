"""The report on many runs: reading, comparing, plotting. Imports neither torch nor gymnasium."""
