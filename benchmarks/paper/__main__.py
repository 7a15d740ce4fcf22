"""`python -m benchmarks.paper`, from the top of a checkout."""

from benchmarks.paper.command import main

main()
