"""Replacements of the native parts in a remote-code folder; see `aero.export.remote_code`.

These files are copied, not imported.
"""
