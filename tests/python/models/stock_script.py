"""A causal language model trained as the examples of `transformers` do it; nothing of ours."""

import math
import sys
from pathlib import Path

from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

checkpoint, text_file, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(checkpoint)
model = AutoModelForCausalLM.from_pretrained(checkpoint)

lines = [line for line in Path(text_file).read_text().splitlines() if line]
dataset = [tokenizer(line, truncation=True, max_length=32) for line in lines]
arguments = TrainingArguments(
    output,
    max_steps=40,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=3e-3,
    eval_strategy="steps",
    eval_steps=20,
    save_steps=20,
    logging_steps=10,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=0,
)
trainer = Trainer(
    model,
    arguments,
    train_dataset=dataset[:-8],
    eval_dataset=dataset[-8:],
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model(output)
perplexity = math.exp(trainer.evaluate()["eval_loss"])
