"""The algorithms of the presets' sources, run as literally as possible."""
