"""One training by another library, or by this project: a driver for each, all with one interface.

    python -m evidence.bench.drivers.NAME TASK

runs in the library's own environment. TASK is a `watch.Task` as JSON, and the last line of the
output is `Watch.report()` as JSON. `python -m evidence.bench.peers` starts the drivers.
"""
