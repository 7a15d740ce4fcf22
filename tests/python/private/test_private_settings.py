"""`aero.private.settings`: ranges, and that the simulator knows every field."""

import pytest
from tests.python.refusals import assert_refused

from aero import mpc
from aero.private.settings import STACK, PrivateSettings


def test_the_defaults_are_those_of_the_stack():
    fields = mpc.stack_fields(STACK)
    own = PrivateSettings().stack_fields()
    differing = {name for name, value in own.items() if fields[name] != value}
    # The thread count is the machine's.
    assert differing == {"threads"}


def test_every_setting_changes_what_the_simulator_prices():
    def price(settings):
        return mpc.simulate(
            "EReg(SM(t)+ScFuFFN)", model="mini", stack=STACK, **settings.stack_fields()
        ).comm_bytes

    standard = price(PrivateSettings())
    for changes in (
        {"private_weights": True}, {"one_bit_product_error": True}, {"exp_squarings": 5},
        {"exp_clip": False}, {"broadcast_reciprocal": False}, {"client_one_hot": True},
        {"last_token_head": True}, {"fold_score_scale": True}, {"argmax": False, "reveal": "all"},
        {"threads": 8},
    ):  # fmt: skip
        assert price(PrivateSettings(**changes)) != standard, changes


BITS, FIELDS = ("fraction_bits", "an integer from 8 to 26"), "spu_fields"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fraction_bits": 7}, (*BITS, "got 7")),
        ({"fraction_bits": 18.0}, (*BITS, "got 18.0")),
        ({"exp_squarings": True}, ("exp_squarings", "an integer from 1 to 17", "got True")),
        ({"reveal": "logits"}, ("reveal", "token, top-k, last-logits or all", "got 'logits'")),
        ({"argmax": False}, ("argmax", "True with reveal=token", "got False")),
        ({"top_k": 65}, ("top_k", "an integer from 1 to 64", "got 65")),
        ({"threads": 0}, ("threads", "an integer from 1 to 64", "got 0")),
        ({"private_weights": 1}, ("private_weights", "True or False", "got 1")),
        ({"timeout_seconds": 0}, ("timeout_seconds", "a number > 0", "got 0")),
        ({"timeout_seconds": float("nan")}, ("timeout_seconds", "a number > 0", "got nan")),
        ({FIELDS: {"protocol": "REF2K"}}, (FIELDS, "of fxp_div", "got 'protocol'")),
        ({FIELDS: {"ot_kind": "EMP"}}, ("ot_kind", "YACL_Softspoken or EMP_Ferret", "got")),
        ({FIELDS: {"fxp_div_goldschmidt_iters": True}}, ("1 or 3 or 4", "got True")),
        ({FIELDS: {"disable_matmul_pack": 1}}, ("disable_matmul_pack", "True", "got 1")),
        ({"protocol": "spdz"}, ("protocol", "cheetah, semi2k or aby3", "got 'spdz'")),
        ({"protocol": "aby3", "private_weights": True}, ("private_weights", "False with aby3")),
        (
            {"protocol": "semi2k", "one_bit_product_error": True},
            ("one_bit_product_error", "False with semi2k"),
        ),
        ({"mul_share": True}, ("'mul_share'", "private_weights")),
    ],
)
def test_settings_that_no_run_has_are_named(changes, named):
    assert_refused(lambda: PrivateSettings.from_dict(changes), *named)


def test_fields_of_spu_stand_beside_the_others_by_name():
    settings = PrivateSettings.from_dict({"threads": 2, "fxp_div_goldschmidt_iters": 1})
    assert settings == PrivateSettings(threads=2, spu_fields={"fxp_div_goldschmidt_iters": 1})
    assert PrivateSettings.from_dict(settings.to_dict()) == settings
    plain = PrivateSettings(threads=2)
    assert settings.stack_fields() == plain.stack_fields()


def test_a_protocol_has_its_stack_and_its_parties() -> None:
    found = {name: PrivateSettings(protocol=name) for name in ("cheetah", "semi2k", "aby3")}
    assert [each.stack for each in found.values()] == ["spu-0.9.5", "spu-semi2k", "spu-aby3"]
    assert [each.parties for each in found.values()] == [2, 2, 3]
