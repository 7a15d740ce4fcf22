"""The terms that parties compare before a run: every difference has a name."""

from __future__ import annotations

import copy
import dataclasses
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import pytest
from tests.python.refusals import assert_refused

import aero
from aero.private.parties.job import check_runnable, check_tokens
from aero.private.parties.passes import Request
from aero.private.parties.terms import PROTOCOL, check_hello, checked_request, hello, party_terms
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings

from ...export.conftest import trained
from ...network.formed_networks import headed, whole


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = aero.export_weights(trained("SM+ScFuFFN"), tmp_path_factory.mktemp("export"))
    return json.loads(Path(folder, "network.json").read_text())


@pytest.fixture(autouse=True)
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The private environment's packages are not in this one."""
    known = {"spu": "0.9.5", "jax": "0.4.34", "numpy": "1.26.4"}
    monkeypatch.setattr(importlib.metadata, "version", known.__getitem__)
    return known


def difference(server: dict[str, Any], client: dict[str, Any]) -> tuple[str, str]:
    """The answers of server and client to each other's terms."""
    said = {"server": hello("server", server), "client": hello("client", client)}
    errors = []
    for own, peer in (("server", "client"), ("client", "server")):
        with pytest.raises(PartyError) as caught:
            check_hello(said[own], json.loads(json.dumps(said[peer].to_dict())), peer)
        errors.append(str(caught.value))
    return errors[0], errors[1]


def test_equal_terms_pass_and_the_weights_may_be_unknown_to_the_client(
    description: dict[str, Any],
) -> None:
    server = party_terms(description, PrivateSettings())
    client = party_terms(
        {key: value for key, value in description.items() if key != "weights"},
        PrivateSettings(timeout_seconds=5),
    )
    assert client["weights"] is None
    check_hello(hello("server", server), hello("client", client).to_dict(), "client")


CHANGES = {
    "fraction_bits": 20, "private_weights": True, "one_bit_product_error": True, "exp_squarings": 5,
    "exp_clip": False, "broadcast_reciprocal": False, "client_one_hot": True,
    "last_token_head": True, "fold_score_scale": True, "argmax": False, "threads": 2,
    "reveal": "top-k", "top_k": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_every_setting_that_differs_is_named_with_both_values(
    description: dict[str, Any], name: str
) -> None:
    start = PrivateSettings(reveal="last-logits")  # with which every other field may change
    settings = start, dataclasses.replace(start, **{name: CHANGES[name]})
    at_server, at_client = difference(*(party_terms(description, each) for each in settings))
    default, changed = (repr(getattr(each, name)) for each in settings)
    assert at_server == f"settings.{name} must be {default} as here, got {changed} from the client"
    assert at_client == f"settings.{name} must be {changed} as here, got {default} from the server"


def test_every_setting_is_compared_but_the_time_limit_and_the_slices(
    description: dict[str, Any],
) -> None:
    fields = {field.name for field in dataclasses.fields(PrivateSettings)}
    terms = party_terms(description, PrivateSettings())
    compared = {name.removeprefix("settings.") for name in terms if name.startswith("settings.")}
    # SPU's own fields are named where there are any.
    assert fields - compared == {"timeout_seconds", "largest_product", "spu_fields"}


def test_a_field_of_spu_at_one_party_is_named_at_both(description: dict[str, Any]) -> None:
    further = PrivateSettings(spu_fields={"disable_matmul_pack": True})
    server, client = (party_terms(description, each) for each in (PrivateSettings(), further))
    at_server, at_client = difference(server, client)
    name = "settings.spu_fields.disable_matmul_pack"
    assert at_server == f"{name} must be None as here, got True from the client"
    assert at_client == f"{name} must be True as here, got None from the server"


def test_another_version_of_spu_is_named(
    description: dict[str, Any], versions: dict[str, str]
) -> None:
    server = party_terms(description, PrivateSettings())
    versions["spu"] = "0.9.4"
    client = party_terms(description, PrivateSettings())
    assert (
        difference(server, client)[0] == "spu must be '0.9.5' as here, got '0.9.4' from the client"
    )


def test_other_weights_are_named_where_both_know_theirs(description: dict[str, Any]) -> None:
    other = copy.deepcopy(description)
    other["weights"]["sha256"] = "0" * 64
    terms = [party_terms(each, PrivateSettings()) for each in (description, other)]
    assert difference(*terms)[0].startswith("weights must be '")


def test_another_network_is_named_by_its_label(description: dict[str, Any], tmp_path: Path) -> None:
    folder = aero.export_weights(trained("SM+LN+R"), tmp_path)
    other = json.loads((folder / "network.json").read_text())
    terms = [party_terms(each, PrivateSettings()) for each in (description, other)]
    at_server, _ = difference(*terms)
    assert at_server == (
        "network.label must be 'SM+ScFuFFN' as here, got 'SM+LN+R' from the client"
    )


def test_a_factor_that_differs_is_found(description: dict[str, Any]) -> None:
    other = copy.deepcopy(description)
    [layers] = [entry for entry in other["operations"] if "repeat" in entry]
    [scores] = [one for one in layers["operations"] if one["op"] == "scores"]
    scores["scale"] += 1e-9
    terms = [party_terms(each, PrivateSettings()) for each in (description, other)]
    assert difference(*terms)[0].startswith("network.description must be '")


def test_terms_that_only_one_party_has_are_named() -> None:
    at_server, at_client = difference({"spu": "0.9.5"}, {"spu": "0.9.5", "new": 1})
    assert at_server == "new must be None as here, got 1 from the client"
    assert at_client == "new must be 1 as here, got None from the server"


@pytest.mark.parametrize("change", [{"protocol": "aero-private 0"}, {"role": "server"}])
def test_another_protocol_or_the_same_role_is_named(change: dict[str, Any]) -> None:
    own, other = hello("server", {}), hello("client", {})
    with pytest.raises(PartyError, match=next(iter(change))):
        check_hello(own, {**other.to_dict(), **change}, "client")


@pytest.mark.parametrize("theirs", [{"a": "x" * 10**6}, {"a\nserved 3": "\x1b[2J\nserved"}])
def test_what_the_other_party_says_is_shown_as_one_short_line(theirs: dict[str, str]) -> None:
    with pytest.raises(PartyError) as caught:
        check_hello(hello("server", {"a": 1}), hello("client", theirs).to_dict(), "client")
    assert str(caught.value).isprintable() and len(str(caught.value)) < 200


def test_a_hello_says_what_it_has_and_no_more() -> None:
    said = hello("client", {"weights": None}, Request(3, 2))
    words = {"protocol": PROTOCOL, "role": "client", "terms": {"weights": None}}
    first = {"prompt_length": 3, "new_tokens": 2, "largest_product": 0, "sequences": 1}
    assert said.to_dict() == {**words, "request": first}
    later = said.in_session("name", Request(3, 2, largest_product=8))
    changed = {**first, "largest_product": 8}
    assert later.to_dict() == {**words, "request": changed, "session": "name"}
    assert hello("server", {}).to_dict() == {"protocol": PROTOCOL, "role": "server", "terms": {}}


def test_a_request_that_fits_passes(description: dict[str, Any]) -> None:
    context = description["spec"]["context_length"]
    request = {"prompt_length": context - 1, "new_tokens": 2}
    assert checked_request(request, description) == Request(context - 1, 2)
    several = checked_request(request | {"sequences": 3}, description)
    assert several == Request(context - 1, 2, sequences=3) and several.all_tokens == 6


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (None, ("prompt_length", "an integer")),
        ({}, ("prompt_length", "an integer")),
        ({"prompt_length": "9", "new_tokens": 1}, ("prompt_length", "an integer", "'9'")),
        ({"prompt_length": 0}, ("prompt_length", "an integer", "0")),
        ({"prompt_length": 33, "new_tokens": 1}, ("prompt_length", "to 32", "got 33")),
        ({"prompt_length": 32, "new_tokens": 2}, ("at most the context of 32", "got 32 + 2")),
        *(
            (
                {"prompt_length": 1, "new_tokens": 1, "sequences": number},
                ("sequences", "an integer from 1 to 1024", "got"),
            )
            for number in (0, -1, 1025, True, 2.0, "2", None)
        ),
    ],
)
def test_what_is_no_request_is_named(
    description: dict[str, Any], request_: Any, named: tuple[str, ...]
) -> None:
    assert description["spec"]["context_length"] == 32
    assert_refused(lambda: checked_request(request_, description), *named, error=PartyError)


@pytest.mark.parametrize(
    ("tokens", "new_tokens", "message"),
    [
        ([1], 0, "tokens must be >= 1, got 0"),
        ([], 1, "the prompt must have at least one token, got none"),
        ([1] * 32, 2, "the prompt's 32 tokens and 1 before the last new one must fit in"),
        ([1, 256], 1, "tokens must be from 0 to 255, got 256"),
    ],
)
def test_a_job_that_does_not_fit_its_network_is_refused(
    tokens: list[int], new_tokens: int, message: str
) -> None:
    network = {"context_length": 32, "vocab_size": 256}
    with pytest.raises(ValueError, match=message):
        check_tokens(tokens, new_tokens, network)


def only(op: str) -> dict[str, Any]:
    """A description that sees earlier tokens alone, but for the operations of this kind."""
    described: dict[str, Any] = headed("class").description
    for layer in described["operations"]:
        for one in layer.get("operations", ()):
            if one["op"] == "softmax":
                one["causal"] = op != "softmax"
    if op == "argmax":
        described["operations"] = [
            one for one in described["operations"] if one.get("op") != "pool"
        ]
    return described


@pytest.mark.parametrize(
    ("op", "named"), [("softmax", "softmax, both sides"), ("pool", "pool"), ("argmax", "argmax")]
)
def test_a_network_that_continues_no_text_is_refused_in_the_words_of_the_table(
    op: str, named: str
) -> None:
    check_runnable(whole("all").description)
    texts = ("private: the network must continue a text", f"got {named};", "network.md")
    assert_refused(lambda: check_runnable(only(op)), *texts)
