"""Runs in the private environment: prints which `SPU_FIELDS` do not reach SPU's configuration."""

import json

from aero.private.compute.spu_runtime import compiler_options, runtime_config
from aero.private.settings import SPU_FIELDS, PrivateSettings


def configuration(settings):
    """All that SPU is told, in a form that can be compared."""
    runtime = runtime_config(settings, profiled=False)
    compiler = compiler_options(settings)
    names = [name for name in dir(compiler) if name.startswith(("enable", "disable", "disallow"))]
    return runtime.SerializeToString(), [getattr(compiler, name) for name in names]


standard = configuration(PrivateSettings())
found = [
    f"{name}={value}"
    for name, spu_field in SPU_FIELDS.items()
    for value in spu_field.values
    if configuration(PrivateSettings(spu_fields={name: value})) == standard
]
one_bit = configuration(
    PrivateSettings(one_bit_product_error=True, spu_fields={"disable_matmul_pack": True})
)
for changes in (
    {"one_bit_product_error": True},
    {"spu_fields": {"disable_matmul_pack": True}},
):  # both stand in Cheetah's own part, where neither may hide the other
    if configuration(PrivateSettings(**changes)) == one_bit:
        found.append(f"{changes} beside the other")
print(json.dumps(found))
