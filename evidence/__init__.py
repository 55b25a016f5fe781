"""The evidence for what the documents claim. It belongs to the checkout, and is not installed.

bench: speed, memory, damaged input, faults and long runs, and comparisons with other checkouts.
study: training over seeds, which writes RESULTS.md from the records.
results: the records of the study. A file holds those of one kind, and its column or key `record`
    names them.
notes: experiments behind the settings that are shipped.
"""
