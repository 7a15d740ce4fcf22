"""Programs of the study beside its targets: `python -m benchmarks.paper.experiments.norms`."""
