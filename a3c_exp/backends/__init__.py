"""Backends: who runs the workers, and where the shared parameters live. One module or folder for
each."""
