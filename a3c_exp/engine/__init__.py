"""How what the components define is computed quickly.

`networks` and `algorithms` say what is computed, in plain torch. This package has fast forms of a
part of it: kernels of layers and of LSTM cells, derivatives of the common distributions and of the
losses. Each kind has a table from a class to its fast form: `kernels.LAYERS`, `runtime.RUNTIMES`,
`distribution_kernels.DISTRIBUTIONS`, `losses.LOSSES`. A subclass is not in the table, so torch
computes it. `kernels=false` leaves all of them out of a run.
"""
