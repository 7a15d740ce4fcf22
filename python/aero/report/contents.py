"""The content of report.json, put together from run folders; everything else is made from it."""

import datetime
import math
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aero import __version__
from aero.architecture import ArchitectureSpec
from aero.internals.records import as_dict, as_record
from aero.internals.run_files import CorpusRecord, Evaluated, TextRecord, unequal_evaluations
from aero.report.comparisons import compare_networks
from aero.report.networks import Network, describe_network
from aero.report.report_file import (
    Made,
    NetworkEntry,
    QuotedNetwork,
    Report,
    SeedSpread,
    Training,
    read_report,
)
from aero.report.run_costs import gpt2_spec, secret_temperature_bytes, stacks, unchecked_parts
from aero.report.runs import RunRecord
from aero.report.text import gigabytes


def assemble(
    networks: Sequence[Network], *, title: str, command: str | None, seed_spread: Path | None
) -> Report:
    """Returns the content of report.json.

    Args:
        networks: at least one.
        title: of the report.
        command: that makes the report, for its footer.
        seed_spread: report.json of several seeds to quote next to a single seed.

    Raises:
        ValueError: runs were evaluated on unequal parts of one text, or `seed_spread` cannot be
            quoted.
    """
    runs = [run for network in networks for run in network.runs]
    unequal = unequal_evaluations(
        Evaluated(str(run.folder), run.info.corpus, run.spec.context_length, run.evaluation)
        for run in runs
        if run.finished and run.evaluation
    )
    if unequal is not None:
        raise ValueError(f"report: {unequal}")
    entries = [describe_network(network) for network in networks]
    return Report(
        title=title,
        made=Made(
            at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            by=f"aero-torch {__version__}, Python {platform.python_version()}",
            command=command,
        ),
        training=_training(runs),
        seeds=sorted({run.info.seed for run in runs}),
        stacks=stacks(),
        networks=entries,
        comparisons=compare_networks(entries),
        notes=[
            *_training_notes(networks, runs),
            *_temperature_notes(entries),
            *_cost_notes(networks),
        ],
        seed_spread=None if seed_spread is None else _quote(seed_spread, entries),
    )


def _training(runs: Sequence[RunRecord]) -> Training:
    """The settings of the runs, as lists of distinct values in order of appearance."""
    infos = [run.info for run in runs]
    return Training(
        seconds=sum(info.seconds or 0.0 for info in infos),
        corpora=_distinct([without_folder(info.corpus) for info in infos if info.corpus]),
        versions=_distinct([info.versions for info in infos]),
        hardware=_distinct([info.hardware for info in infos]),
        commands=_distinct([info.command for info in infos]),
        git_commits=_distinct([info.git_commit for info in infos]),
    )


def without_folder(corpus: CorpusRecord) -> TextRecord:
    """Returns what a reader elsewhere can use of a run's record of its corpus."""
    return as_record(as_dict(corpus), TextRecord, "")


def _distinct(values: Sequence[Any]) -> list[Any]:
    """The values that are not empty, each once, in order of appearance."""
    found: list[Any] = []
    for value in values:
        if value and value not in found:
            found.append(value)
    return found


def _training_notes(networks: Sequence[Network], runs: Sequence[RunRecord]) -> list[str]:
    notes = [warning for run in runs for warning in run.warnings]
    notes += _distinct(
        [
            f"The corpus {corpus.name}: {remark}."
            for run in runs
            if (corpus := run.info.corpus)
            for remark in corpus.remarks
        ]
    )
    unchecked = [f"{run.folder.name} ({run.unchecked})" for run in runs if run.unchecked]
    if unchecked:
        notes.append(f"Not compared with checksums, as there are none: {', '.join(unchecked)}.")
    corpora = [run.info.corpus for run in runs if run.info.corpus]
    texts = _distinct([corpus.sha256 for corpus in corpora])
    splits = _distinct([corpus.train_tokens for corpus in corpora])
    if len(texts) > 1:
        notes.append("The networks were trained on different texts: perplexities do not compare.")
    elif len(splits) > 1:
        notes.append("The same text was cut into different tokens: compare bits per byte.")
    tests = _distinct([_evaluation_of(run) for run in runs])
    if len(tests) > 1:
        notes.append(
            "The networks were evaluated differently: "
            + "; ".join(f"{windows} windows, {tokens} tokens" for windows, tokens in tests)
            + "."
        )
    if len({network.spec.vocab_size for network in networks}) > 1:
        notes.append("The vocabularies differ in size: compare bits per byte, not perplexities.")
    if len({run.tokens for run in runs if run.finished}) > 1:
        notes.append("The networks saw different numbers of training tokens.")
    notes.extend(_document_notes(runs))
    for run in runs:
        if run.info.status not in ("finished", "diverged"):
            notes.append(f"{run.folder.name} was {run.ending}: it is left out of every comparison.")
        elif run.finished and run.evaluation is None:
            notes.append(
                f"{run.folder.name} has no evaluation.json, so no perplexity; `aero evaluate` "
                "adds it."
            )
        if run.finished and run.analysis is None:
            notes.append(
                f"{run.folder.name} has no analysis.json, so no entropies; `aero analyze` adds it."
            )
    return notes


def _evaluation_of(run: RunRecord) -> tuple[str, int] | None:
    if run.evaluation is None:
        return None
    return run.evaluation.windows, run.evaluation.tokens or 0


def _document_notes(runs: Sequence[RunRecord]) -> list[str]:
    """The spread over validation texts, which ± over seeds leaves out."""
    found = [
        (run.folder.name, run.evaluation.documents, *run.evaluation.perplexity_interval)
        for run in runs
        if run.finished and run.evaluation and run.evaluation.perplexity_interval
    ]
    if not found:
        return []
    intervals = ", ".join(
        f"{name} {math.nan if low is None else low:.2f} to {math.inf if high is None else high:.2f}"
        for name, _, low, high in found
    )
    return [
        "± is over seeds, on one and the same text. On another text: 95 % intervals of perplexity "
        f"over {found[0][1]} documents {intervals}."
    ]


def _temperature_notes(entries: Sequence[NetworkEntry]) -> list[str]:
    """A temperature can cross zero in training; attention then prefers the worst matches."""
    return [
        f"{entry.name}: {found.not_positive} learned temperatures are zero or negative, down to "
        f"{math.nan if found.minimum is None else found.minimum:.2g}: there attention prefers the "
        "keys that match least."
        for entry in entries
        if (found := entry.temperature) and found.not_positive
    ]


def _cost_notes(networks: Sequence[Network]) -> list[str]:
    notes = [
        "Bytes are simulated, not measured: sent plus received at one party, two parties, GB = 1e9 "
        "bytes, set-up, embedding, LM head on all tokens and one argmax included.",
        "At GPT-2 size the operators the paper lists are counted (no final LayerNorm). The paper's "
        "bytes show one LayerNorm more in every row; that column is given too.",
    ]
    added = {
        network.name: size
        for network in networks
        if (gpt2 := gpt2_spec(network.spec))
        and (size := secret_temperature_bytes(gpt2)) is not None
    }
    notes.extend(
        f"{name}: the temperatures are counted as public. Kept secret they add {gigabytes(size)} "
        f"GB at GPT-2 size on {stacks()[0]}; the paper's bytes fit only without that."
        for name, size in added.items()
    )
    unchecked = unchecked_parts([network.spec for network in networks])
    if unchecked:
        notes.append(
            "No published or measured number checks these costs: " + "; ".join(unchecked) + "."
        )
    return notes


def read_seed_spread(path: str | Path) -> Report:
    """Reads the report.json of a run over several seeds.

    Raises:
        ValueError: it is missing, damaged, of another format, or of a single seed.
    """
    if not Path(path).exists():
        raise ValueError(f"report: seed_spread {path} is missing")
    report = read_report(path)
    if len(report.seeds) < 2:
        raise ValueError(
            f"report: seed_spread {path} must be the report of several seeds, got {report.seeds}"
        )
    return report


def _spec(entry: NetworkEntry) -> ArchitectureSpec:
    """The spec, of an older report too, which lacks the fields that came later."""
    return ArchitectureSpec.from_dict(entry.spec)


def _quote(path: Path, entries: Sequence[NetworkEntry]) -> SeedSpread:
    """The numbers of a report over several seeds, and whether its networks are the same."""
    other = read_seed_spread(path)
    theirs = {entry.name: entry for entry in other.networks}
    common = [(entry, theirs[entry.name]) for entry in entries if entry.name in theirs]
    same = bool(common) and all(
        _spec(own) == _spec(their) and _tokens(own) == _tokens(their) for own, their in common
    )
    return SeedSpread(
        source=path.name,
        seeds=other.seeds,
        made_at=other.made.at,
        hardware=other.training.hardware,
        same_networks_and_tokens=same,
        networks=[
            QuotedNetwork(
                entry.name,
                entry.perplexity,
                entry.bits_per_byte,
                [run.ending for run in entry.runs if run.ending],
            )
            for entry in other.networks
        ],
    )


def _tokens(entry: NetworkEntry) -> set[int]:
    return {run.tokens for run in entry.runs if run.status == "finished"}
