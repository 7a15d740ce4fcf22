"""Where every parameter starts, and the ends of every range of configuration and penalty."""

import math
import re
from functools import partial

import pytest
import torch
from tests.python.refusals import assert_refused

from aero.models import AeroConfig, AeroForCausalLM, EntropyPenalty
from aero.models.configuration import _NUMBERS
from aero.models.row_entropies import RowEntropies
from aero.nn.linear import Linear

from .labels import LABELS, tiny

SETTINGS = {
    "initializer_range": 0.5,
    "threshold_init": 0.75,
    "temperature_init": 0.25,
    "temperature_parametrization": "log",
    "leaky_slope_init": 0.125,
    "entropy_strengths": "learned",
}
RESIDUAL = 0.5 / math.sqrt(2 * 2)
# The end of a name -> the number that the parameter is, or the deviation of its numbers.
NUMBERS = {
    r"bias|discrepancy|num_updates|strength_bias|shift": 0.0,
    r"ln_\w+\.alpha": 0.5,
    r"(ln_\w+)\.weight|alpha|beta|gamma|running_mean_square": 1.0,
    r"temperature\.value": math.log(0.25),
    r"entropy_threshold": 0.75,
    r"negative_slope": 0.125,
    r"\.gain": 0.1,
}
DEVIATIONS = {
    r"wte\.weight|wpe\.weight|(c_attn|q_attn|k_attn|v_attn|c_fc|lm_head)\.weight": 0.5,
    r"(c_proj|mlp)\.weight": RESIDUAL,
}


def of_name(name, table):
    found = [value for end, value in table.items() if re.search(rf"({end})$", name)]
    return found[0] if found else None


@pytest.mark.parametrize("label", LABELS)
def test_every_parameter_starts_where_the_configuration_says(label):
    torch.manual_seed(0)
    model = tiny(label, **SETTINGS)
    is_shaped = label.startswith("SOTA")
    for path, layer in model.named_modules():
        if not isinstance(layer, Linear):
            continue
        weight, expected = layer.weight.detach(), of_name(f"{path}.weight", DEVIATIONS)
        if "SNFFN" in label and hasattr(layer, "parametrizations"):
            largest = torch.linalg.matrix_norm(weight, 2).item()
            assert largest == pytest.approx(1, rel=0.1), path
            assert layer.parametrizations.weight.original.std().item() == pytest.approx(
                expected, rel=0.1
            )
        elif is_shaped and path.endswith("q_attn"):
            assert not weight.any(), path
        else:
            assert weight.std().item() == pytest.approx(expected, rel=0.1), path
            assert abs(weight.mean().item()) < 0.1 * expected, path
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if "parametrizations" in name:
            continue
        number = of_name(name, NUMBERS)
        if name.endswith("convolution.weight") and value.dim() == 3:
            assert not value.any(), name
        elif name.endswith("convolution.weight"):  # the token itself, and those before
            assert (value[0] == 1.0).all(), name
            bound = value.shape[0] ** -0.5
            assert 0.9 * bound < value[1:].abs().max() <= bound, name
            assert value[1:].std().item() == pytest.approx(bound / 3**0.5, rel=0.3), name
        elif number is not None:
            torch.testing.assert_close(value.float(), torch.full(value.shape, number), msg=name)
        elif not name.endswith(".progress"):
            expected = 0.0 if is_shaped and "q_attn" in name else of_name(name, DEVIATIONS)
            assert value.std().item() == pytest.approx(expected, rel=0.1), name


def test_positions_may_start_as_large_as_the_scaled_token_embeddings():
    started = {}
    for start in ("weights", "embeddings"):
        torch.manual_seed(0)
        model = tiny("SM+ScFuFFN", embedding_scale=-4.0, position_start=start)
        started[start] = dict(model.named_parameters())
    positions = [each.pop("transformer.wpe.weight") for each in started.values()]
    torch.testing.assert_close(positions[1], 4 * positions[0])  # of the same random numbers
    torch.testing.assert_close(started["weights"], started["embeddings"], rtol=0, atol=0)
    scaled = -4.0 * started["embeddings"]["transformer.wte.weight"].std()
    assert positions[1].std().item() == pytest.approx(abs(scaled.item()), rel=0.15)


# --- the ends of ranges ---------------------------------------------------------------------------

ENDS = {
    "entropy_weight": (0, -1e-9),
    "entropy_tokens": (1, 0.999),
    "tolerance_margin": (0, -1e-9),
    "threshold_init": (-1e300, math.nan),
    "temperature_init": (-1e300, 0.0),
    "leaky_slope_init": (-1e300, math.nan),
    "layer_norm_epsilon": (1e-300, 0.0),
    "rotary_base": (1e-300, 0.0),
    "embedding_scale": (-1e300, math.nan),
    "initializer_range": (0, -1e-9),
    "embedding_dropout": (0, -1e-9),
    "residual_dropout": (0.999, 1.0),
    "attention_dropout": (0.999, 1.0),
}


def test_every_number_of_the_configuration_is_in_this_table():
    assert ENDS.keys() == _NUMBERS.keys()


@pytest.mark.parametrize("key", ENDS)
def test_a_number_of_the_configuration_ends_where_it_says(key):
    inside, outside = ENDS[key]
    if key != "entropy_tokens":
        inside = float(inside)
    assert getattr(AeroConfig(**{key: inside}), key) == inside
    expected = _NUMBERS[key][1]
    for value in (outside, True, "1", None):
        config = AeroConfig()
        setattr(config, key, value)
        assert_refused(config._check_values, f"AeroConfig: {key} ", expected, f"got {value!r}")


@pytest.mark.parametrize(
    ("layers", "count", "is_taken"),
    [
        ([], 0, True),
        ([0], 1, True),
        ([1], 1, True),
        ([0, 1], 2, True),
        (None, 2, True),
        ([1, 0], 2, False),
        ([0, 0], 2, False),
        ([2], 1, False),
        ([-1], 1, False),
        ([0], 2, False),
        ([0, 1], 1, False),
    ],
)
def test_pruned_layers_are_as_many_as_the_label_counts(layers, count, is_taken):
    def make():
        return AeroConfig.from_label(f"SM_i{count}", model="tiny", pruned_ffn_layers=layers)

    if is_taken:
        config = make()
        assert config.layers_without_ffn == (
            list(range(2 - count, 2)) if layers is None else layers
        )
        pruned = [block.mlp is None for block in AeroForCausalLM(config).transformer.blocks()]
        assert [i for i, one in enumerate(pruned) if one] == config.layers_without_ffn
        return
    expected = f"num_pruned_ffns = {count} ascending layers from 0 to 1"
    assert_refused(make, "AeroConfig: pruned_ffn_layers", expected, f"got {layers}")


PENALTY = {
    "weight": 1e-5,
    "tokens": 128 * 127,
    "margin": 0.1,
    "reduction": "position_sum",
    "max_entropy": "log_context",
    "context_length": None,
    "strengths": "equal",
}


def test_a_penalty_tells_its_settings():
    thresholds = torch.full((2, 3), 0.5)
    assert EntropyPenalty(thresholds).settings() == PENALTY
    given = {
        "weight": 0.5,
        "tokens": 7,
        "margin": 0.25,
        "reduction": "query_mean",
        "max_entropy": "log_visible",
        "context_length": 9,
        "strengths": "learned",
    }
    penalty = EntropyPenalty(thresholds, **given)
    assert penalty.settings() == given
    assert penalty.extra_repr() == ", ".join(f"{name}={value!r}" for name, value in given.items())
    penalty.threshold_bias.data.zero_()
    assert thresholds.eq(0.5).all()  # its own copy


@pytest.mark.parametrize(
    ("name", "inside", "expected", "outside"),
    [
        ("weight", 0, "a number from 0", -1e-9),
        ("tokens", 1, "a number from 1", 0),
        ("margin", 0, "a number from 0", -1e-9),
        ("reduction", "query_mean", "'position_sum' or 'query_mean'", "mean"),
        ("max_entropy", "log_visible", "'log_context' or 'log_visible'", "mean"),
    ],
)
def test_a_setting_of_the_penalty_ends_where_it_says(name, inside, expected, outside):
    make = partial(EntropyPenalty, torch.full((1, 1), 0.5))
    assert getattr(make(**{name: inside}), name) == inside
    for value in (outside, math.nan, "1", None):
        named = (f"with_entropy_penalty: {name} ", expected, f"got {value!r}")
        assert_refused(partial(make, **{name: value}), *named)


def test_row_entropies_tell_a_line_per_layer():
    layers = (torch.tensor([[[0.0, 0.5], [1.0, 2.0]]]), torch.tensor([[[0.25, 0.25], [0.5, 0.5]]]))
    found = RowEntropies(layers, torch.ones(1, 2).bool(), torch.tensor([[[1, 2]]] * 2))
    assert str(found).splitlines() == [
        "layer 0: mean 0.875 nats, heads 0.250 to 1.500 of at most 0.347",
        "layer 1: mean 0.375 nats, heads 0.250 to 0.500 of at most 0.347",
    ]
    assert found.temperatures is None and found.thresholds is None
    assert found.summary().max_entropy == math.log(2)
    assert found.summary(context_length=8).max_entropy == math.log(8)
