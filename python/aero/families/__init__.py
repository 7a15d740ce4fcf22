"""Hugging Face's models as operations, from their configurations alone.

Needs neither torch nor transformers: prices read it, and `aero.models.foreign_writer` adds weights.
"""
