"""Text and tokens: corpora read, split and counted, and token files that are kept for later."""
