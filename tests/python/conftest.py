"""Settings every Python test runs under."""

import os

from hypothesis import settings

# Inductor's cache on disk is not invalidated by a changed fake kernel, so a corrected operator
# would keep failing.
os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Waiting threads sleep: spinning ones cost a busy machine three quarters of its time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# The same examples in every run, so that a commit passes or fails for good.
# `pytest --hypothesis-profile=explore` draws new ones.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("repeatable")
