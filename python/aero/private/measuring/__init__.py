"""Bytes and seconds of private runs, next to the simulator's predictions."""
