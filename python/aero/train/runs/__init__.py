"""The folder of a run: what is planned, kept and measured there."""
