"""Own networks where `transformers` and lm-evaluation-harness expect a model."""

import json
import logging
import math
import warnings

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    pipeline,
)

from aero.models import AeroForCausalLM
from aero.models.decoder import AeroModel

from .labels import tiny

CHARACTERS = [*map(chr, range(32, 127)), "\n"]
LABELS = ["SM+LN+G", "EReg(SM(t)+ScFuFFN)"]


def tokenizer():
    """One token per character, and the one that ends a text."""
    vocabulary = {"<end>": 0, **{text: i for i, text in enumerate(CHARACTERS, start=1)}}
    one = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    one.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    one.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=one, eos_token="<end>", bos_token="<end>", pad_token="<end>"
    )


@pytest.fixture(params=LABELS)
def saved(request, tmp_path):
    """A folder with a network and its tokenizer."""
    model = tiny(request.param, eos_token_id=0, bos_token_id=0, pad_token_id=0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    return tmp_path


def test_auto_classes_find_networks_and_tokenizers(saved):
    assert type(AutoModelForCausalLM.from_pretrained(saved)) is AeroForCausalLM
    assert type(AutoModel.from_pretrained(saved)) is AeroModel
    text = "def f(x):\n    return x"
    reader = AutoTokenizer.from_pretrained(saved)
    assert reader.decode(reader(text)["input_ids"]) == text


def test_the_text_generation_pipeline_gives_what_generate_gives(saved):
    model, reader = AeroForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    arguments = {"max_new_tokens": 5, "do_sample": False}
    generate = pipeline("text-generation", model=str(saved))
    prompts = ["print(", "x = [i for i in"]
    made = generate(prompts, batch_size=2, **arguments)  # pads the shorter one on the left
    for prompt, (answer,) in zip(prompts, made, strict=True):
        ids = reader(prompt, return_tensors="pt")["input_ids"]
        alone = reader.decode(model.generate(ids, **arguments)[0], skip_special_tokens=True)
        assert answer["generated_text"] == alone


QUESTIONS = [
    {"question": "2 + 2 = ", "answers": ["4", "5", "22"], "gold": 0},
    {"question": "x = x", "answers": [" + 1", "(", "\n"], "gold": 1},
    {"question": "for i", "answers": [" in", " of", " at"], "gold": 0},
]
TASKS = {
    "local_choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "answers",
        "doc_to_target": "gold",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    },
    "local_text": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "question",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
}


def log_likelihood(model, reader, prompt, text):
    """Nats of `text` behind `prompt`, by the model itself."""
    first, rest = (reader(part)["input_ids"] for part in (prompt, text))
    ids = torch.tensor([[*first, *rest]])
    with torch.no_grad():
        scores = model(ids).logits.log_softmax(dim=-1)[0, :-1]
    return scores.gather(1, ids[0, 1:, None])[len(first) - 1 :].sum().item()


def test_the_evaluation_harness_runs_on_our_networks(saved, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager

    data = tmp_path / "questions.json"
    data.write_text("\n".join(map(json.dumps, QUESTIONS)))
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name, settings in TASKS.items():
        source = {
            "dataset_path": "json",
            "dataset_kwargs": {
                "data_files": {"test": str(data)},
                "cache_dir": str(tmp_path / "cache"),
            },
            "test_split": "test",
        }
        (tasks / f"{name}.yaml").write_text(json.dumps({"task": name, **source, **settings}))
    model, reader = AeroForCausalLM.from_pretrained(saved), AutoTokenizer.from_pretrained(saved)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    results = simple_evaluate(
        HFLM(pretrained=model, tokenizer=reader, max_length=32, batch_size=2, device="cpu"),
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
    )["results"]

    right = total = 0
    for question in QUESTIONS:
        prompt = question["question"]
        scores = [log_likelihood(model, reader, prompt, text) for text in question["answers"]]
        right += scores.index(max(scores)) == question["gold"]
        total -= log_likelihood(model, reader, "<end>", prompt)
    assert results["local_choice"]["acc,none"] == pytest.approx(right / len(QUESTIONS))
    num_bytes = sum(len(question["question"]) for question in QUESTIONS)
    bits = total / num_bytes / math.log(2)
    assert results["local_text"]["bits_per_byte,none"] == pytest.approx(bits, rel=1e-5)
