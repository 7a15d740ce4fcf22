"""One description of a network and its readers: an operation is a row of a table, and a function.

`network.json` is a short list of operations over named values. `primitives` lists the operations
with their fields and weights, `numpy_reader` says in float64 what each computes, `ring_reader`
computes the same in the fixed-point numbers of private inference, `aero.private` in JAX, and
`aero.mpc` prices it. Needs no torch.
"""
