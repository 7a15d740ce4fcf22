import copy
import math

import pytest
import torch
from transformers import Trainer, TrainingArguments

from aero.models import AeroConfig, AeroForCausalLM
from aero.train import AeroTrainer, Distillation
from aero.train.distillation import distillation_loss

from .two_processes import one_step

EREG = "EReg(SM(t)+ScFuFFN)"


def network(label, seed):
    torch.manual_seed(seed)
    model = AeroForCausalLM(AeroConfig.from_label(label, model="tiny", entropy_weight=1e-3))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.1, 0.1)
    return model


def test_the_loss_is_the_divergence_of_softened_distributions():
    generator = torch.Generator().manual_seed(0)
    student, teacher = torch.randn(2, 2, 5, 7, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 7, (2, 5), generator=generator)
    labels[0, 3:] = -100
    temperature, total, count = 1.7, 0.0, 0
    for row in range(2):
        for position in range(4):
            if labels[row, position + 1] == -100:
                continue
            p = [math.exp(float(x) / temperature) for x in teacher[row, position]]
            q = [math.exp(float(x) / temperature) for x in student[row, position]]
            p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
            total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            count += 1
    found = distillation_loss(student, teacher, labels, temperature=temperature)
    assert float(found) == pytest.approx(temperature**2 * total / count, rel=1e-12)
    parted = distillation_loss(
        student, teacher, labels, temperature=temperature, num_items_in_batch=10
    )
    assert float(parted) == pytest.approx(temperature**2 * total / 10, rel=1e-12)


@pytest.mark.parametrize("count", [None, 0, torch.tensor(0)])
def test_a_batch_without_a_counted_token_teaches_nothing(count):
    student, teacher = network(EREG, 0).train(), network("SM+LN+G", 1)
    ids = torch.randint(0, 256, (2, 8))
    inputs = {"input_ids": ids, "labels": ids * 0 - 100}
    outputs = student(**inputs, num_items_in_batch=count)
    loss = Distillation(teacher, temperature=2.0, weight=0.5).loss(outputs, inputs, count)
    loss.backward()
    assert loss == 0
    assert all((parameter.grad == 0).all() for parameter in student.parameters())


def test_gradients_vanish_where_the_student_agrees():
    teacher = torch.randn(1, 4, 6, dtype=torch.float64)
    student = (teacher + 3.0).requires_grad_()  # logits shifted alike are the same distribution
    loss = distillation_loss(student, teacher, torch.zeros(1, 4).long(), temperature=2.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-14)
    assert student.grad.abs().max() < 1e-14


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_a_share_of_the_cross_entropy_is_replaced_and_the_penalty_is_not(weight):
    student, teacher = network(EREG, 0).train(), network("SM+LN+G", 1)
    ids = torch.randint(0, 256, (2, 32))
    inputs = {"input_ids": ids, "labels": ids}
    outputs = student(**inputs)
    found = Distillation(teacher, temperature=2.0, weight=weight).loss(outputs, inputs, None)
    with torch.no_grad():
        logits = teacher.eval()(ids).logits
    distance = distillation_loss(outputs.logits, logits, ids, temperature=2.0)
    expected = (1 - weight) * outputs.lm_loss + weight * distance + 1e-3 * outputs.entropy_loss
    torch.testing.assert_close(found, expected)


def test_the_teacher_is_evaluated_and_does_not_learn():
    teacher = network("SM+FN+R", 1).train()
    before = copy.deepcopy(teacher.state_dict())
    student = network("SM+R", 0).train()
    ids = torch.randint(0, 256, (2, 32))
    inputs = {"input_ids": ids, "labels": ids}
    distillation = Distillation(teacher, temperature=1.0, weight=1.0)
    distillation.loss(student(**inputs), inputs, None).backward()
    assert not teacher.training
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


def weights_after_a_step(tmp_path, parts):
    ids = torch.randint(0, 256, (8, 16), generator=torch.Generator().manual_seed(2))
    labels = ids.clone()
    for row in range(8):
        labels[row, 16 - row :] = -100
    model = network(EREG, 0)
    AeroTrainer(
        model=model,
        args=one_step(tmp_path, 8 // parts, parts),
        train_dataset=[{"input_ids": i, "labels": w} for i, w in zip(ids, labels, strict=True)],
        distillation=Distillation(network("SM+LN+G", 1), temperature=2.0, weight=0.6),
    ).train()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_a_distilled_step_does_not_depend_on_the_micro_batch(tmp_path):
    start = {name: p.detach() for name, p in network(EREG, 0).named_parameters()}
    expected = weights_after_a_step(tmp_path, 1)
    largest = max(float((expected[name] - start[name]).abs().max()) for name in start)
    for parts in (2, 4):
        for name, value in weights_after_a_step(tmp_path, parts).items():
            torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5 * largest)


def test_evaluation_is_without_the_teacher(tmp_path):
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 256, (4, 16))]
    arguments = TrainingArguments(tmp_path, use_cpu=True, report_to=[], disable_tqdm=True)
    student = network("SM+R", 0)
    plain = Trainer(student, arguments, eval_dataset=rows).evaluate()["eval_loss"]
    trainer = AeroTrainer(
        student,
        arguments,
        eval_dataset=rows,
        distillation=Distillation(network("SM+LN+G", 1), temperature=2.0, weight=1.0),
    )
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain, rel=1e-6)
