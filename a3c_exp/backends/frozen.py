"""The last module that the server of worker processes imports: what is there by then is shared by all of them.

Without this, the first garbage collection of each worker would write to every object's header and so copy its page.
"""

import gc

gc.collect()
gc.freeze()
