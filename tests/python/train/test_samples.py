"""The line of validation text that reports show."""

from aero.train.runs.samples import sentence_of


def test_the_sentence_is_the_first_line_of_five_words():
    shown = "# the quick brown fox jumps over the dog"
    short, few = "import os", "print(1234567890, 1234567890, 12345)"
    assert sentence_of(f"{short}\n{few}\n\n    {shown}\n{shown} again\n") == shown


def test_text_without_a_sentence_gives_its_beginning():
    assert sentence_of("import os\n\nimport sys\n" + "x" * 80) == f"import os import sys {'x' * 39}"


def test_a_line_that_a_person_would_write_comes_before_code_and_headers():
    text = (
        "# Copyright 2001 by someone, all rights kept here\n"
        "for line in file if line is not None\n"
        "    # Wait until the child is gone, then go on.\n"
        "    return the first of all the lines here\n"
    )
    assert sentence_of(text) == "Wait until the child is gone, then go on."
