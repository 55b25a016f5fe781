"""The report on many runs: reading, comparing, drawing. Imports neither torch nor gymnasium."""
