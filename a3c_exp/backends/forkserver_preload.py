"""The last module that the server of worker processes imports: what is there by then is shared by all of them."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal

# Else the first garbage collection of each worker would write to every object's header and so copy its page.
gc.collect()
gc.freeze()

# The folder that multiprocessing keeps its socket in. Whoever made it removes it, unless it was killed; the server
# outlives that, and ends last of all.
_temporary = os.environ.pop("A3C_EXP_TEMPORARY", None)
if _temporary is not None:
    atexit.register(shutil.rmtree, _temporary, ignore_errors=True)

# The server itself must outlive a signal to its whole group: it tells how workers ended. It was started with these
# signals blocked, which what it forks would inherit, also for other parts of the program: their pools end by SIGTERM.
os.register_at_fork(after_in_child=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM)))
