"""`python -m aero.cli`."""

from aero.cli import main

main()
