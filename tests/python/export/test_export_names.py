"""Every name of `aero.export` is there, although it loads on first use."""

import aero.export


def test_the_public_names_are_there():
    for name in aero.export.__all__:
        assert getattr(aero.export, name).__name__ == name
