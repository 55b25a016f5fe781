"""What the fork server imports. Workers share the memory of all of it."""

from __future__ import annotations

import atexit
import gc
import os
import shutil

from a3c_exp.common import signals

gc.disable()  # nothing that is imported is garbage, and to search it takes a quarter of a second

import gymnasium  # noqa: E402

import a3c_exp.backends.processes.children  # noqa: E402, F401

# Otherwise the first garbage collection of each worker would write to every object's header, and so
# copy its page.
gc.freeze()
gc.enable()

# gymnasium warns of an environment where the first one is made: every worker would say the same
# again.
gymnasium.logger.min_level = gymnasium.logger.ERROR

# The folder of multiprocessing's socket. The process that made it removes it, unless that process
# is killed. The server outlives that process, and ends last of all.
_temporary = os.environ.pop("A3C_EXP_TEMPORARY", None)
if _temporary is not None:
    atexit.register(shutil.rmtree, _temporary, ignore_errors=True)

# The server itself must outlive a signal to its whole group, since it reports how workers ended. It
# was therefore started with these signals blocked. Processes that it forks must not inherit that:
# other parts of the program may have the server fork processes too, such as those of a pool, which
# is ended by SIGTERM.
os.register_at_fork(after_in_child=signals.unblock)
