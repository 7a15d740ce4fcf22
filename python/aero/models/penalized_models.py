"""`with_entropy_penalty`: models as `transformers` ships them, and PEFT's, with the penalty."""

from __future__ import annotations

import difflib
import functools
import inspect
from typing import Any, cast

import torch
from torch import Tensor, nn

from aero.models.causal_lm import AeroForCausalLM, whole
from aero.models.entropy_penalty import EntropyPenalty, entropies_in
from aero.models.head_penalty import strengths_of
from aero.models.recorded_outputs import let_hooks_be_pickled, set_state
from aero.models.row_entropies import entropies, transformers_model, without_adapters
from aero.nn.visible_keys import recorded_calls

_ATTRIBUTE = "entropy_penalty"  # of the model, its configuration and PEFT's files
_SETTINGS = ("threshold", *list(inspect.signature(EntropyPenalty).parameters)[1:])


def with_entropy_penalty(
    model: nn.Module, *, threshold: float | Tensor | None = None, **settings: Any
) -> Any:
    """Lets a `transformers` model train with the entropy penalty; one line in any script.

    The model itself is changed and returned. In training its `loss` is ``lm_loss + penalty_nats``:
    the loss without, and the weighted penalty in nats per predicted token; `entropy_loss` is the
    penalty before its weight. In evaluation `loss` and logits are the model's own; a call with
    labels adds the three as attributes, and one with ``return_dict=False`` is the model's own
    throughout. Else a call with labels fills no cache unless it says so.

    The penalty has the divisor of the loss: the predicted tokens of the call, or
    `num_items_in_batch`. So its weight is the same in `Trainer`, Accelerate and plain loops, with
    `DistributedDataParallel`, `fully_shard` and ``loss / k`` over k micro-batches, wherever the
    language-model loss is: micro-batches and processes of equally many labels, or all of them
    counted in `num_items_in_batch`. Where no token counts, training adds 0 with zero gradients.

    Thresholds are learned and saved with the model as ``entropy_penalty.threshold_bias``, [L, H],
    strengths per head as ``entropy_penalty.strength_bias`` where ``strengths="learned"`` asks for
    them; the model's outputs depend on neither. `save_pretrained` also writes them and the
    settings into ``config.json``; once more `with_entropy_penalty` on what `from_pretrained` loads
    goes on from there.

    Args:
        model: a decoder with a language-model head as for `aero.entropies`, or one of those in a
            PEFT model. Adapters that are put in afterwards need
            ``modules_to_save=["entropy_penalty"]``. Networks of `AeroForCausalLM` bring their own
            penalty: ``"EReg(...)"``.
        threshold: start of the thresholds, a fraction of the maximal entropy or [L, H] of them;
            default: as saved, else 0.5.
        **settings: of the penalty, as in `EntropyPenalty`; default: as saved.

    Returns:
        The model.

    Raises:
        ValueError: the model gives no entropies, is an encoder, is one of ours, has the penalty
            already, or has another forward than its class, with the alternative.
        TypeError: an unknown setting.

    Example:
        >>> import torch
        >>> from aero import with_entropy_penalty
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> config = GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9, attn_pdrop=0.0)
        >>> model = with_entropy_penalty(GPT2LMHeadModel(config), weight=1e-4).train()
        >>> tokens = torch.tensor([[1, 2, 3, 4]])
        >>> output = model(tokens, labels=tokens)
        >>> output.loss.dim(), output.entropy_loss.dim(), model.entropy_penalty.threshold_bias.shape
        (0, 0, torch.Size([2, 2]))
    """
    changed = cast(Any, without_adapters("with_entropy_penalty", model))
    if isinstance(changed, AeroForCausalLM):
        raise ValueError(
            "with_entropy_penalty: an AeroForCausalLM has its own penalty; give it a label such as "
            "'EReg(SM+LN+G)' and set entropy_weight in its configuration"
        )
    transformers_model("with_entropy_penalty", changed)
    if hasattr(changed, _ATTRIBUTE):
        raise ValueError(
            "with_entropy_penalty: the model has a penalty; take it away with "
            "aero.models.without_entropy_penalty first"
        )
    if threshold is not None:
        settings["threshold"] = threshold
    _refuse_other_forward(vars(changed).get("forward"), changed)
    settings = {**_saved_settings(changed), **settings}
    _refuse_unknown(settings)
    # Two tokens through the network say whether it gives entropies, of how many layers and heads.
    measured = entropies(changed, torch.zeros(1, 2, dtype=torch.long))
    if (measured.visible_keys[:, :, 0] > 1).any():
        raise ValueError(
            f"with_entropy_penalty: expected a decoder, got {type(changed).__name__}, whose tokens "
            "see those after them; add aero.models.EntropyPenalty's term to the loss of an encoder"
        )
    found = measured.layers
    start = _thresholds(settings.pop("threshold", 0.5), (len(found), found[0].shape[1]))
    penalty = EntropyPenalty(start.to(found[0].device), **settings)
    changed.set_attn_implementation("aero_entropy")
    changed.entropy_penalty = penalty
    changed.__class__ = _penalized(changed.__class__)
    if changed is not model:
        _train_with_adapter(cast(Any, model))
    return model


def without_entropy_penalty(model: nn.Module) -> Any:
    """Undoes `with_entropy_penalty`, such as before saving; the attention stays `aero_entropy`.

    Args:
        model: a model with the penalty; it is changed and returned.

    Raises:
        ValueError: it has none.

    Example:
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> from aero.models import with_entropy_penalty, without_entropy_penalty
        >>> config = GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9, attn_pdrop=0.0)
        >>> model = GPT2LMHeadModel(config)
        >>> names = set(model.state_dict())
        >>> len(set(with_entropy_penalty(model).state_dict()) - names)
        1
        >>> set(without_entropy_penalty(model).state_dict()) == names
        True
    """
    changed = cast(Any, without_adapters("without_entropy_penalty", model))
    if not hasattr(changed, _ATTRIBUTE):
        raise ValueError(
            f"without_entropy_penalty: {type(changed).__name__} has no entropy penalty"
        )
    delattr(changed, _ATTRIBUTE)
    if hasattr(changed.config, _ATTRIBUTE):
        delattr(changed.config, _ATTRIBUTE)
    changed.__class__ = type(changed).__bases__[0]
    for adapter in getattr(changed, "peft_config", {}).values():
        if adapter.modules_to_save and _ATTRIBUTE in adapter.modules_to_save:
            kept = [name for name in adapter.modules_to_save if name != _ATTRIBUTE]
            adapter.modules_to_save = kept or None
    return model


def _saved_settings(model: Any) -> dict[str, Any]:
    saved = getattr(model.config, _ATTRIBUTE, None) if hasattr(model, "config") else None
    if saved is not None and not isinstance(saved, dict):
        raise ValueError(
            f"with_entropy_penalty: entropy_penalty in config.json must be a mapping of settings, "
            f"got {type(saved).__name__}"
        )
    return saved or {}


def _refuse_unknown(settings: dict[str, Any]) -> None:
    for name in settings:
        if name not in _SETTINGS:
            nearest = difflib.get_close_matches(str(name), _SETTINGS, n=1, cutoff=0.0)[0]
            raise TypeError(
                f"with_entropy_penalty: unknown setting {name!r}; did you mean {nearest!r}?"
            )


def _thresholds(start: Any, shape: tuple[int, int]) -> Tensor:
    try:
        thresholds = torch.as_tensor(start, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        thresholds = torch.empty(0)
    if thresholds.shape not in ((), shape):
        got = repr(start) if thresholds.numel() == 0 else list(thresholds.shape)
        raise ValueError(
            f"with_entropy_penalty: threshold must be a number or [L, H] = {list(shape)}, got {got}"
        )
    return thresholds.expand(shape)


def _train_with_adapter(model: Any) -> None:
    """Makes PEFT train and save the thresholds with the active adapter."""
    from peft.utils import set_additional_trainable_modules

    name = model.active_adapter
    adapter = model.peft_config[name]
    adapter.modules_to_save = [*(adapter.modules_to_save or []), _ATTRIBUTE]
    set_additional_trainable_modules(
        model=model.get_base_model(),
        peft_config=adapter,
        model_config=model.get_base_model().config.to_dict(),
        adapter_name=name,
    )


@functools.cache
def _penalized(model_class: Any) -> type:
    """The same class with the penalty in the loss and in its saved files.

    A class rather than hooks on the model: adapters such as those of PEFT call `forward` itself.
    It lies in no module, so its models are pickled as the model's class and this function.
    """
    plain = model_class.forward
    names = tuple(inspect.signature(plain).parameters)[1:]

    @functools.wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        # A tuple has no place for the parts of the loss.
        is_tuple = arguments.get("return_dict") is False
        if not self.training and (is_tuple or arguments.get("labels") is None):
            return plain(self, *args, **kwargs)
        is_asked = arguments.get("output_attentions")
        arguments["output_attentions"] = True
        if "use_cache" in names and arguments.get("use_cache") is None:
            arguments["use_cache"] = False
        with recorded_calls() as calls:
            outputs = plain(self, **(_divided(arguments) if self.training else arguments))
        if self.training:
            _refuse_frozen(self)
            return self.entropy_penalty.join(outputs, arguments, calls)
        return _measured(self, outputs, arguments, calls, keeps_entropies=is_asked)

    # Whoever takes wrappers off again (accelerate's `unwrap_model`) must stop here.
    del forward.__wrapped__
    forward.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if name == "forward":
            _refuse_other_forward(value, self, forward)
        model_class.__setattr__(self, name, value)

    def reduce(self: Any, protocol: Any) -> Any:
        let_hooks_be_pickled(self)
        reduced = model_class.__reduce_ex__(self, protocol)
        is_ours = type(self) is _penalized(model_class)  # not what `fully_shard` makes of it
        return (_empty, (model_class,), *reduced[2:]) if is_ours else reduced

    @functools.wraps(model_class.save_pretrained)
    def save_pretrained(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = kwargs.get("state_dict") or self.state_dict()
        learned = {
            name.rpartition(".")[2]: whole(value).detach().float()
            for name, value in state.items()
            if name.endswith((".threshold_bias", ".strength_bias"))
        }
        saved = {"threshold": learned["threshold_bias"].tolist(), **self.entropy_penalty.settings()}
        if "strength_bias" in learned:
            saved["strengths"] = strengths_of(learned["strength_bias"]).tolist()
        self.config.entropy_penalty = saved
        return model_class.save_pretrained(self, *args, **kwargs)

    # Name and module stay: they go into config.json and say where the source is.
    members = {
        "forward": forward,
        "__setattr__": set_attribute,
        "__reduce_ex__": reduce,
        "__setstate__": set_state,
        "save_pretrained": save_pretrained,
        "__module__": model_class.__module__,
    }
    return type(model_class.__name__, (model_class,), members)


def _empty(model_class: Any) -> Any:
    """A model of `_penalized` for pickle to fill."""
    penalized = cast(Any, _penalized(model_class))
    return penalized.__new__(penalized)


def _refuse_other_forward(found: Any, model: Any, expected: Any = None) -> None:
    """Refuses a forward of the instance that does not lead to the one with the penalty."""
    if found is None:
        return
    chain = [found]
    while hasattr(chain[-1], "__wrapped__"):
        chain.append(chain[-1].__wrapped__)
    if expected not in [getattr(one, "__func__", one) for one in chain]:
        raise ValueError(
            f"with_entropy_penalty: the forward of {type(model).__name__} is replaced by "
            f"{getattr(found, '__qualname__', found)}, which would leave the penalty out; add the "
            "penalty before anything that wraps the model (accelerate, device_map), wrap with "
            "functools.wraps(model.forward), and switch off fused losses (liger: "
            "fused_linear_cross_entropy=False)"
        )


def _divided(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments under which a loss over no token has gradients: `join` makes both 0."""
    count = arguments.get("num_items_in_batch")
    if count is None:
        return arguments
    return {**arguments, "num_items_in_batch": torch.as_tensor(count).clamp(min=1)}


def _refuse_frozen(model: Any) -> None:
    is_learned = model.entropy_penalty.threshold_bias.requires_grad
    if hasattr(model, "peft_config") and torch.is_grad_enabled() and not is_learned:
        raise ValueError(
            "with_entropy_penalty: PEFT has frozen the thresholds; give the adapter's "
            "configuration modules_to_save=['entropy_penalty'], or put the penalty on the PEFT "
            "model: with_entropy_penalty(get_peft_model(...))"
        )


def _measured(model: Any, outputs: Any, arguments: Any, calls: Any, *, keeps_entropies: Any) -> Any:
    """The outputs of an evaluation call: the model's own, and the parts of the loss."""
    layers = entropies_in(outputs)
    dropped = () if keeps_entropies else ("attentions", "cross_attentions")
    found = type(outputs)(**{name: outputs[name] for name in outputs if name not in dropped})
    if layers is None:
        return found
    # Attributes, no fields: Trainer would gather those as predictions.
    found.lm_loss = found.loss
    parts = model.entropy_penalty.beside_loss(layers, arguments, calls)
    found.entropy_loss, found.penalty_nats = parts
    return found
