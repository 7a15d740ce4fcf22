"""Prepared data as its files tell it, and the words for what is wrong."""

import dataclasses
import hashlib
import json
import os
import re
import types
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.python.refusals import assert_refused

from aero.internals.errors import TrainingError
from aero.internals.records import as_dict, changed
from aero.saved.tokenizer import END_OF_TEXT, limited
from aero.train.data import prepared_data, token_files
from aero.train.data.corpora import scan_corpus
from aero.train.data.corpus_files import find_corpus
from aero.train.data.prepared_data import (
    name_on_hub,
    open_prepared_data,
    prepare_data,
    prepared_folder,
    require_fitting,
)
from aero.train.data.token_files import TokenFile, TokenWriter, open_tokens
from aero.train.recipes.recipe import DataSection


@pytest.fixture
def section(corpus):
    return DataSection(source=str(corpus), vocabulary=320, validation_fraction=0.2)


def test_a_manifest_and_a_summary_tell_all_of_a_corpus(section, tmp_path):
    data = prepare_data(section, cache_dir=str(tmp_path), context_length=32)
    source = find_corpus(section.source)
    scan = scan_corpus(source, 0.2)
    files = {
        split: {
            "file": f"{split}.bin",
            "dtype": "uint16",
            "tokens": len(tokens),
            "text_bytes": size,
            "sha256": hashlib.sha256((data.folder / f"{split}.bin").read_bytes()).hexdigest(),
        }
        for split, tokens, size in (
            ("train", data.train, scan.train_bytes),
            ("validation", data.validation, scan.validation_bytes),
        )
    }
    shared = {"name": "source", "version": "", "sha256": scan.sha256}
    shared["copied_share"] = scan.copied_share
    assert as_dict(data.manifest) == {
        **shared,
        "format": 2,
        "root": section.source,
        "files_sha256": source.files_sha256,
        "documents": {
            "train": scan.count(0),
            "validation": scan.count(1),
            "duplicates_dropped": 0,
            "undecodable_dropped": 0,
        },
        "undecodable": {"bytes_share": 0.0, "first": ""},
        "unread": {"files": 0, "first": ""},
        "vocabulary": 320,
        "tokenizer": "train",
        "files": files,
    }
    assert as_dict(data.record()) == {
        **shared,
        "folder": str(data.folder.resolve()),
        "remarks": data.remarks,
        "train_tokens": len(data.train),
        "validation_tokens": len(data.validation),
        "validation_bytes": scan.validation_bytes,
    }
    names = {path.name for path in data.folder.iterdir()}
    assert names == {".lock", "manifest.json", "tokenizer", "train.bin", "validation.bin"}
    config = json.loads((data.folder / "tokenizer" / "tokenizer_config.json").read_text())
    wanted = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    wanted |= {"model_max_length": 32, "clean_up_tokenization_spaces": False}
    assert {name: config[name] for name in wanted} == wanted
    # Each document ends with one mark.
    mark = data.tokenizer.eos_token_id
    assert (data.train == mark).sum() == scan.count(0) and data.train[-1] == mark


def test_the_folder_of_a_corpus_depends_on_all_that_shapes_its_tokens(section, tmp_path):
    source = find_corpus(section.source)
    odd = dataclasses.replace(source, name="a b/ü_c-1.2")
    assert re.fullmatch(r"a-b-_c-1\.2-[0-9a-f]{12}", prepared_folder(odd, section, tmp_path).name)
    folders = [prepared_folder(source, section, tmp_path)]
    for changes in (
        {"root": Path("/x")},
        {"version": "3"},
        {"change_key": "4"},
    ):
        folders.append(prepared_folder(dataclasses.replace(source, **changes), section, tmp_path))
    for changes in (
        {"vocabulary": 321},
        {"tokenizer": "gpt2"},
        {"tokenizer_bytes": 7},
        {"validation_fraction": 0.1},
        {"split_by": "folder"},
    ):
        folders.append(prepared_folder(source, dataclasses.replace(section, **changes), tmp_path))
    assert len(set(folders)) == len(folders) and {path.parent for path in folders} == {tmp_path}
    elsewhere = dataclasses.replace(section, source="another word for the same")
    assert prepared_folder(source, elsewhere, tmp_path) == folders[0]
    identity = {"format": 2, "root": str(source.root), "version": "", "tokenizer": "train"}
    identity |= {"change_key": source.change_key, "vocabulary": 320, "validation_fraction": 0.2}
    identity["tokenizer_bytes"] = 32_000_000
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    assert folders[0].name == f"source-{key[:12]}"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("stdlib", ""),
        ("name", "name"),
        ("owner/name", "owner/name"),
        ("owner/na.me", ""),
        ("owner/na-m_e2", "owner/na-m_e2"),
        ("o-w/n", "o-w/n"),
        ("/owner/name", ""),
        ("./name", ""),
        ("~/name", ""),
        ("a/b/c", ""),
        ("there", ""),
        ("text.txt", ""),
    ],
)
def test_a_source_is_a_name_on_the_hub_or_a_place(source, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert name_on_hub(source) == name


def test_a_tokenizer_is_trained_on_as_much_text_as_is_asked_for(section, tmp_path, monkeypatch):
    seen, bars = [], []

    class Bar:
        def __init__(self, *asked, **options):
            bars.append([asked, options, 0])

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def update(self, size):
            bars[-1][2] += size

    train = prepared_data.train_tokenizer
    monkeypatch.setattr(prepared_data, "progress_bar", Bar)
    monkeypatch.setattr(
        prepared_data,
        "train_tokenizer",
        lambda texts, size: train(seen.extend(texts) or seen, size),
    )
    size = len(next(iter(Path(section.source).iterdir())).read_bytes())
    small = dataclasses.replace(section, tokenizer_bytes=size)
    prepare_data(small, cache_dir=tmp_path, context_length=32)
    used = sum(len(text.encode()) for text in seen)
    assert size <= used < 2.5 * size
    scan = scan_corpus(find_corpus(section.source), 0.2)
    total = scan.train_bytes + scan.validation_bytes
    assert bars == [
        [("training tokenizer on source", size, "B"), {}, used],
        [("tokenizing source", total, "B"), {"initial": 0}, total],
    ]
    assert list(limited(["ab", "é", "c", "d"], 4)) == ["ab", "é"]
    assert list(limited(["ab", "é", "c", "d"], 5)) == ["ab", "é", "c"]
    assert list(limited(["a"], 0)) == []


def test_texts_are_tokenized_in_batches_of_a_million_characters():
    pieces = [types.SimpleNamespace(text="x" * size) for size in (1 << 19, 1 << 19, 5, 1 << 20, 3)]
    batches = list(prepared_data.batches_of(iter(pieces)))
    assert [[len(piece.text) for piece in batch] for batch in batches] == [
        [1 << 19, 1 << 19],
        [5, 1 << 20],
        [3],
    ]


def test_a_split_needs_a_window_and_the_token_behind_it(section, tmp_path):
    data = prepare_data(section, cache_dir=tmp_path, context_length=32)
    least = len(data.validation) - 1
    assert len(open_prepared_data(str(data.folder), context_length=least).validation) == least + 1
    opened = partial(open_prepared_data, data.folder)
    named = ("validation split", f"one window of {least + 1} tokens", f"got {least + 1} tokens")
    assert_refused(partial(opened, context_length=least + 1), *named, error=TrainingError)
    manifest = data.folder / "manifest.json"
    known = as_dict(data.manifest)
    newer = {**known, "files": {**known["files"], "more": 1}}
    manifest.write_text(json.dumps(newer))
    assert open_prepared_data(data.folder, context_length=8).manifest == data.manifest
    newer["files"]["train"]["tokens"] = -1
    manifest.write_text(json.dumps(newer))
    opened = partial(opened, context_length=8)
    assert_refused(opened, "files.train.tokens", "expected int >= 0", error=TrainingError)
    manifest.write_text("[]")
    named = (f"{manifest}: expected ", f"delete the folder {data.folder}")
    assert_refused(opened, *named, error=TrainingError)


def test_a_tokenizer_may_have_as_many_tokens_as_the_network(section):
    require_fitting([None] * 320, section)
    tokens = ("'train'", "data.vocabulary = 320", "321 tokens")
    assert_refused(lambda: require_fitting([None] * 321, section), *tokens, error=TrainingError)


# --- token files ------------------------------------------------------------------------------


def test_a_token_file_is_what_its_manifest_says_or_is_named(tmp_path):
    folder = tmp_path / "new" / "folder"
    writer = TokenWriter(str(folder), vocabulary=65_537, corpus_sha256="0")
    writer.append("train", [70_000, 1], text_bytes=4)
    writer.append("train", iter([2]), text_bytes=3)
    writer.append("validation", [], text_bytes=0)
    assert writer.text_bytes == 7 and writer.next_unit == 0
    entries = writer.finish()
    content = np.array([70_000, 1, 2], dtype="<u4").tobytes()
    digest = hashlib.sha256(content).hexdigest()
    assert entries.train == TokenFile(
        file="train.bin", dtype="uint32", tokens=3, text_bytes=7, sha256=digest
    )
    assert sorted(path.name for path in folder.iterdir()) == ["train.bin", "validation.bin"]
    assert open_tokens(folder, entries.train).tolist() == [70_000, 1, 2]
    empty = open_tokens(str(folder), entries.validation)
    assert len(empty) == 0 and empty.dtype == np.dtype("<u4")
    with pytest.raises(ValueError, match="read-only"):
        open_tokens(folder, entries.train)[0] = 1
    path, entry = folder / "train.bin", entries.train
    for changes, *named in (
        ({"tokens": 4}, path, "16 bytes", "got 12"),
        ({"sha256": "0" * 64}, path, "the manifest's", "SHA-256"),
        ({"file": "other.bin"}, folder / "other.bin", "missing"),
        ({"file": "../train.bin"}, "the manifest's token file is none", "'../train"),
        ({"dtype": "int8"}, "the manifest's token file is none", "dtype='int"),
    ):
        opened = partial(open_tokens, folder, changed(entry, **changes))
        assert_refused(opened, *named, f"delete the folder {folder}", error=TrainingError)


def test_a_writer_notes_what_is_on_disk_and_goes_on_from_there(tmp_path, monkeypatch):
    now, synced = [100.0], []
    monkeypatch.setattr(token_files.time, "monotonic", lambda: now[0])
    # By number of the open file: what of it is on the way to the disk.
    monkeypatch.setattr(
        token_files.os, "fsync", lambda file: synced.append((file, os.fstat(file).st_size))
    )

    def writer():
        return TokenWriter(tmp_path, vocabulary=300, corpus_sha256="0")

    first, note = writer(), tmp_path / "progress.json"
    first.append("train", [1, 2], text_bytes=5)
    now[0] += 5.0
    first.unit_finished(0)
    assert not note.exists()  # more than five seconds are to pass
    now[0] += 0.5
    first.append("validation", [3], text_bytes=2)
    first.unit_finished(1)
    assert json.loads(note.read_text()) == {
        "identity": "0 uint16 300",
        "next_unit": 2,
        "text_bytes": {"train": 5, "validation": 2},
        "file_bytes": {"train": 4, "validation": 2},
    }
    numbers = {split: first._files[split].fileno() for split in ("train", "validation")}
    assert {(numbers["train"], 4), (numbers["validation"], 2)} <= set(synced)
    whole = note.read_text()
    now[0] += 5.0
    first.append("train", [4], text_bytes=1)
    first.unit_finished(2)
    first.close()
    assert note.read_text() == whole and all(file.closed for file in first._files.values())
    second = writer()
    assert (second.next_unit, second.text_bytes) == (2, 7)
    second.append("train", [5], text_bytes=1)
    second.close()
    for damage in ("shorter", "gone", "other", "none"):
        if damage == "shorter":
            os.truncate(tmp_path / "train.bin.partial", 3)
        elif damage == "gone":
            (tmp_path / "validation.bin.partial").unlink()
        elif damage == "other":
            note.write_text(whole.replace("0 uint16", "1 uint16"))
        else:
            note.unlink()
        third = writer()
        assert (third.next_unit, third.text_bytes) == (0, 0), damage
        third.close()
        assert (tmp_path / "train.bin.partial").stat().st_size == 0
        for split in ("train", "validation"):
            (tmp_path / f"{split}.bin.partial").write_bytes(bytes(8))
        note.write_text(whole)
    last = writer()
    last.append("train", [4], text_bytes=1)
    wanted = {(last._files["train"].fileno(), 6), (last._files["validation"].fileno(), 2)}
    synced.clear()
    entries = last.finish()
    assert set(synced) == wanted
    assert last.text_bytes == 8 and entries.train.tokens == 3
    assert not note.exists() and not list(tmp_path.glob("*.partial"))
