"""The labels and sizes that the model tests go through."""

from aero.models import AeroConfig, AeroForCausalLM

LABELS = [
    "SM+LN+G",
    "SM+LN+R",
    "SM+LN",
    "SM+G",
    "SM+R",
    "SM+LR(layer)",
    "SM+LR(global)",
    "SM",
    "SM+WNFFN",
    "SM+WNFFN(qk)",
    "SM+WNFFN(qk+ffn)",
    "SM+WNFFN(qkv+ffn)",
    "SM+WNFFN(qkvo+ffn)",
    "SM+SNFFN",
    "SM+SNFFN(qk)",
    "SM+SNFFN(qk+ffn)",
    "SM+SNFFN(qkv+ffn)",
    "SM+SNFFN(qkvo+ffn)",
    "SM+ScFFN",
    "SM+FuFFN",
    "SM+ScFuFFN",
    "SM+ScFuFFN_i1",
    "SM+ScFuFFN_i2",
    "SM+LN+ScFuFFN",
    "SM(t)+LN+ScFFN",
    "EReg(SM+LN+G)",
    "EReg(SM(t)+ScFuFFN)",
    "EReg(SM(t)+ScFuFFN_i1)",
    "EReg(SM(t:head)+ScFuFFN)",
    "EReg(SM(t:scalar)+G)",
    "SM+FN+ScFuFFN",
    "SM+FN+ScFFN",
    "SM+FN+R",
    "SM+FN(scalar)+R",
    "SM+FN+LR(global)",
    "EReg(SM(t)+FN+ScFuFFN)",
    "SM+DyT+G",
    "SM+Derf+ScFuFFN",
    "SM+Derf+ScFFN_i1",
    "EReg(SM(t)+DyT+ScFuFFN)",
    "SM+ScFuFFN+C4",
    "SM+FN+R+C4",
    "SM+LN+G+C2_i1",
    "SM+ScFuFFN+D4",
    "EReg(SM(t)+FN+R+D3)",
    "SM+LN+LR(global)+D2_i2",
    "SM+ScFuFFN+S4",
    "SM+LN+R+S2",
    "SM+FN+ScFuFFN+S8_i1",
    "SOTA:SM+ScFFN",
    "SOTA:SM+ScFuFFN",
    "SOTA:SM+ScFuFFN_i1",
    "SOTA:SM+LN+R",
    "SOTA:SM+Derf+R",
    "SOTA:SM+WNFFN(qk+ffn)",
    "SOTA:SM+SNFFN(qkvo+ffn)",
    "SOTA:EReg(SM(t)+FN+R)",
]

# Pythia's choices at the size of `tiny`.
PYTHIA = {
    "family": "pythia",
    "rotary_fraction": 0.25,
    "parallel_residual": True,
    "tied_embeddings": False,
}
FAMILIES = {"gpt2": {}, "pythia": PYTHIA}


def tiny(label: str, family: str = "gpt2", **overrides: object) -> AeroForCausalLM:
    """A network of the preset `tiny`."""
    config = AeroConfig.from_label(label, model="tiny", **{**FAMILIES[family], **overrides})
    return AeroForCausalLM(config)
