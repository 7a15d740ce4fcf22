import errno
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from tests.python.refusals import assert_refused

from aero.internals.errors import TrainingError
from aero.saved.tokenizer import END_OF_TEXT, train_tokenizer
from aero.train.data import prepared_data, token_files
from aero.train.data.prepared_data import open_prepared_data, prepare_data
from aero.train.data.token_files import TokenWriter, open_tokens, token_dtype
from aero.train.recipes.recipe import DataSection


@pytest.fixture
def data(corpus):
    return DataSection(source=str(corpus), vocabulary=320, validation_fraction=0.2)


def prepare(data, folder):
    return prepare_data(data, cache_dir=folder, context_length=32)


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def test_tokens_decode_to_the_corpus(data, tmp_path, corpus):
    prepared = prepare(data, tmp_path)
    decoded = prepared.tokenizer.decode(np.concatenate([prepared.train, prepared.validation]))
    texts = sorted(text for text in decoded.split(END_OF_TEXT) if text)
    assert texts == sorted(path.read_text() for path in corpus.iterdir())


def test_token_bytes_add_up_to_the_text(data, tmp_path):
    prepared = prepare(data, tmp_path)
    for split in ("train", "validation"):
        counted = prepared.token_bytes[getattr(prepared, split)].sum()
        assert counted == getattr(prepared.manifest.files, split).text_bytes


def test_the_tokenizer_saw_the_training_split_only(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("a", "b", "c", "d"):
        (folder / f"{name}.txt").write_text(name * 3 + " only" * 400)
    prepared = prepare(DataSection(source=str(folder), vocabulary=300), tmp_path / "cache")
    held_out = prepared.tokenizer.decode(prepared.validation)[:1]
    words = [token for token in prepared.tokenizer.get_vocab() if token.startswith(held_out * 2)]
    assert words == []


def test_a_second_call_reuses_the_files(data, tmp_path, monkeypatch):
    first = prepare(data, tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(prepared_data, "scan_corpus", lambda *a: pytest.fail("read again"))
    second = prepare(data, tmp_path)
    assert second.folder == first.folder and contents(tmp_path) == before


def test_large_vocabularies_take_four_bytes(tmp_path):
    assert token_dtype(65_536).itemsize == 2 and token_dtype(65_537).itemsize == 4
    writer = TokenWriter(tmp_path, vocabulary=70_000, corpus_sha256="x")
    writer.append("train", [69_999], text_bytes=1)
    assert open_tokens(tmp_path, writer.finish().train).tolist() == [69_999]


def test_a_killed_tokenization_continues_to_the_same_files(data, tmp_path, monkeypatch):
    whole = prepare(data, tmp_path / "whole")
    monkeypatch.setattr(token_files, "_SECONDS_BETWEEN_NOTES", 0.0)
    monkeypatch.setattr(prepared_data, "_BATCH_BYTES", 1)
    write, calls = prepared_data._write_batch, []

    def killed(writer, tokenizer, batch):
        calls.append(batch[0].unit)
        if len(calls) == 6:
            writer.append("train", [1, 2, 3], text_bytes=3)  # written but not noted
            raise SystemExit
        return write(writer, tokenizer, batch)

    monkeypatch.setattr(prepared_data, "_write_batch", killed)
    with pytest.raises(SystemExit):
        prepare(data, tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob("manifest.json"))
    prepared = prepare(data, tmp_path / "killed")
    assert calls == [*range(6), *range(5, 12)]
    np.testing.assert_array_equal(prepared.train, whole.train)
    np.testing.assert_array_equal(prepared.validation, whole.validation)
    assert not list(prepared.folder.glob("*.partial")) and not list(
        prepared.folder.glob("progress*")
    )


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "manifest"])
def test_damaged_files_are_named_with_the_way_out(damage, data, tmp_path):
    folder = prepare(data, tmp_path).folder
    path = folder / "validation.bin"
    if damage == "truncated":
        os.truncate(path, path.stat().st_size - 2)
    elif damage == "changed":
        content = bytearray(path.read_bytes())
        content[10] ^= 1
        path.write_bytes(content)
    elif damage == "missing":
        path.unlink()
    else:
        (folder / "manifest.json").write_text('{"files": ')
    for call in (
        lambda: prepare(data, tmp_path),
        lambda: open_prepared_data(folder, context_length=32),
    ):
        with pytest.raises(TrainingError) as error:
            call()
        assert f"delete the folder {folder} and run the command again" in str(error.value)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_and_the_work_is_kept(code, data, tmp_path, monkeypatch):
    monkeypatch.setattr(token_files, "_SECONDS_BETWEEN_NOTES", 0.0)
    monkeypatch.setattr(prepared_data, "_BATCH_BYTES", 1)
    append, calls = TokenWriter.append, []

    def full(self, *arguments, **options):
        calls.append(1)
        if len(calls) == 8:
            raise OSError(code, os.strerror(code))
        append(self, *arguments, **options)

    monkeypatch.setattr(TokenWriter, "append", full)
    with pytest.raises(TrainingError, match=r"no space left in .* while writing the corpus"):
        prepare(data, tmp_path)
    note = json.loads(next(tmp_path.rglob("progress.json")).read_text())
    assert note["next_unit"] == 7
    assert len(prepare(data, tmp_path).train) > 0


def test_data_that_cannot_be_prepared_is_named(data, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared_data, "download_dataset", lambda *a: pytest.fail("went out"))
    large = prepare(data, tmp_path / "first").folder / "tokenizer"
    little = tmp_path / "little"
    little.mkdir()
    for name in ("a", "b"):
        (little / f"{name}.txt").write_text(name)
    for changes, *named in (
        ({"source": str(little)}, f"split of {little}", "more than one window of 32", "got"),
        ({"source": ""}, "data", "--data"),
        ({"source": str(tmp_path / "nothing")}, "data", "'stdlib', a folder or a file", "nothing"),
        ({"tokenizer": str(large)}, "tokenizer", "more than data.vocabulary = 300", "tokens"),
        ({"tokenizer": "no/such-tokenizer"}, "tokenizer", "a folder", "'no/such-tokenizer'"),
    ):
        section = replace(data, vocabulary=300, **changes)
        assert_refused(lambda: prepare(section, tmp_path / "second"), *named, error=TrainingError)  # noqa: B023


def test_a_saved_tokenizer_can_be_used_again(data, tmp_path):
    first = prepare(data, tmp_path / "first")
    second = prepare(replace(data, tokenizer=str(first.folder / "tokenizer")), tmp_path / "second")
    np.testing.assert_array_equal(first.train, second.train)


def test_training_a_tokenizer_twice_gives_the_same_one():
    texts = ["the cat and the hat", "a hat on the mat"] * 20
    first, second = (train_tokenizer(texts, 280).to_str() for _ in range(2))
    assert first == second


def _prepare_and_report(data, folder, queue):
    queue.put(len(prepare(data, folder).train))


def test_two_processes_prepare_the_same_corpus_once(data, tmp_path, fork_server):
    queue = fork_server.Queue()
    workers = [
        fork_server.Process(target=_prepare_and_report, args=(data, tmp_path, queue))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    lengths = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert lengths[0] == lengths[1] > 0
    assert len(list(tmp_path.glob("*/manifest.json"))) == 1
