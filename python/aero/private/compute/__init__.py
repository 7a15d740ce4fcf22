"""The computation of both parties under SPU; all but `calls` needs the private environment."""
