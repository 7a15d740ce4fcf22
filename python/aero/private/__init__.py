"""Exported networks run privately: between two parties, under SecretFlow SPU with Cheetah.

`settings`, `parties` and `environment` need nothing but Python and NumPy. Everything that computes
imports jax and spu, whose pins fit no environment with torch: it runs in one of its own, which
`make private` sets up, and `aero private` starts it as a child process.
"""
