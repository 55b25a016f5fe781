"""The words of a command line that are no settings. Importing Hydra for its flags takes a third of
a second, which `--help` need not wait for."""

EXISTING = ("refuse", "resume", "restart")
NUMBERS = ("jobs", "search")
WORDS = {
    "sweep": (
        "the folder of a sweep: finished runs in it stay, runs that were cut go on, "
        "the others begin"
    ),
    "jobs": "a whole number from 1 to 99999: runs of a sweep at once",
    "search": (
        "a whole number from 1 to 99999: trials, whose settings are chosen by the "
        "scores of earlier ones"
    ),
    "objective": "best, last or a curve: the score in a search",
    "existing": f"one of {', '.join(EXISTING)}: what becomes of runs that are there already",
    "resume": "one run's folder: it goes on",
    "from": "one run's folder: a new run takes its settings",
}
"""The words, what each may be, and what it does."""
