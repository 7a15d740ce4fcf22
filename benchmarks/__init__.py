"""Times of operators, and the study of the paper; neither is part of the wheel."""
