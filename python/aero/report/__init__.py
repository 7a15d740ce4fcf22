"""Reports that compare trained networks: quality, entropies and the price of private inference.

`write_report` reads run folders and writes `report.html` (one file that asks nothing of the
network), `report.md`, `report.json` and `figures/*.svg`; everything is computed from the runs.

`report.json`, format 1. Entropies are in nats, bytes are sent plus received at one party; a number
over seeds is {"mean", "standard_deviation" (None for one seed), "minimum", "maximum", "values"}:

- `format`, `title`, `seeds`, `stacks` (the first is the one the paper's bytes show)
- `made`: `at` (UTC), `by`, `command`
- `training`: `seconds` (sum over runs), and the distinct `corpora`, `versions`, `hardware`,
  `commands`, `git_commits`
- `networks`, one entry per architecture:
    - `name`, `label`, `way` (what it was annealed or continued from and taught by, in words; empty
      for random weights and text alone)
    - `spec`, `parameters`, `parameters_in_training` (with thresholds)
    - `flops`: `paper` {ffn, attention, total}, `executed` {ffn, attention, lm_head, total}
    - `nonlinear_operations`, as the paper's tables print them
    - `runs`: `folder`, `seed`, `status`, `ending` (None if finished), `diverged`, `divergence`,
      `skipped_steps`, `steps_done`, `steps_total`, `tokens`, `seconds`, `evaluated`, `windows`,
      `loss`, `perplexity`, `bits_per_byte` (None where not finite), `documents` and
      `perplexity_interval` over them (None where their ends are unknown), `evaluated_tokens`,
      `analyzed`
    - `loss`, `perplexity`, `bits_per_byte`: over the finished, evaluated runs with finite numbers;
      None without one
    - `entropy`: `mean`, `mean_normalized_context` (by log T), `mean_normalized_visible` (by
      log(i+1)), `quarters` {observed_max, log_context}, `overloaded_share` (of log T, by
      seed), the heads `collapsed`, `overloaded`, `collapsed_log_context`,
      `overloaded_log_context`, `nan_heads`, `observed_max`,
      `max_entropy`, `seeds`, `seed_of_named_heads`; None without an analysis
    - `ffn_spectra`: by layer `entropy`, `participation` and `enrichment`, each `_before` and
      `_after` the activation, and `jensen_shannon` (`aero.analysis.spectra`); None for a layer
      without activation, and without an analysis
    - `thresholds`, `temperature`: their ranges, and how many temperatures are `not_positive`; None
      for networks without
    - `sample`: `text`, a line of the corpus, and `continuation`, the network's text after it;
      None without an analysis
    - `private_inference`: `trained` and `gpt2` by stack {comm_bytes, rounds, seconds, by_kind},
      `gpt2_one_more_layernorm`, `paper` {table, perplexity, diverged, comm_gigabytes,
      latency_minutes}
- `comparisons`: `network` and `against`, which differ in one thing; `quantity`, "perplexity" or
  "overloaded heads" (their share); `difference` of the first against the second, a fraction of
  perplexity or of heads, and the ends `low` and `high` of its simultaneous 95 % interval (None
  where unknown); `seeds`; `verdict` of `aero.report.seeds` on the first: "lower", "higher",
  "level", "undecided", "not tested"
- `notes`: sentences on missing values, values that do not compare, and assumptions
- `seed_spread`: quoted from a report over several seeds, or None

`to_text`, `to_csv` and `to_html` show the results of `aero.mpc`.

Example:
    >>> from aero import report
    >>> report.write_report(["runs/of/nobody"], "report")
    Traceback (most recent call last):
    ...
    ValueError: report: runs/of/nobody is not a folder
"""

from __future__ import annotations

from aero.internals.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
