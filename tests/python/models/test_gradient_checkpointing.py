import pytest
import torch

from .labels import tiny

LABELS = [
    "EReg(SM(t)+ScFuFFN)",
    "SM+FN+R",
    "SM+SNFFN(qk+ffn)",
    "SM+LR(global)",
    "EReg(SM+FN+R+C4)",
    "SM+ScFuFFN+S4",
    "SOTA:SM+ScFFN",
]


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("label", LABELS)
def test_gradients_and_state_are_those_without(label, use_reentrant):
    results = []
    for is_checkpointed in (False, True):
        torch.manual_seed(0)
        model = tiny(label, tolerance_margin=0.0, entropy_weight=0.1, temperature_init=0.5)
        if is_checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        tokens = torch.randint(256, (2, 32))
        model.train()(tokens, labels=tokens).loss.backward()
        results.append(({n: p.grad for n, p in model.named_parameters()}, model.state_dict()))
    for expected, actual in zip(*results, strict=True):
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value, rtol=1e-5, atol=1e-7, msg=name)


def test_a_cache_is_refused():
    model = tiny("SM+G").train()
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="use_cache must be False with gradient checkpointing"):
        model(torch.randint(256, (2, 8)), use_cache=True)
