"""The lines of a private run for people."""

from aero.mpc.cost import Cost
from aero.private.compute.calls import Call, Traffic
from aero.private.measuring.run_reports import PassReport, RunReport
from aero.private.settings import PrivateSettings


def test_columns_of_a_large_run_do_not_touch() -> None:
    cost = Cost(client_bytes=4e11, server_bytes=5e11, rounds=7, ots=1e9)
    traffic = Traffic(client_bytes=400_123_456_789, server_bytes=500_123_456_789)
    call = Call("layer 0", 123456.789, traffic)
    one = PassReport(
        length=128, rows=1, tokens=(1,), plaintext_tokens=(1,), largest_difference=0.1,
        largest_logit=3.0, calls=(call,), predicted={"layer 0": cost},
        predicted_seconds={"layer 0": 234567.891},
    )  # fmt: skip
    report = RunReport(
        "SM", PrivateSettings(), ((1,),), ((1,),), (one,), (Call("set-up", 1.0, traffic),), cost
    )
    [row] = (line for line in report.to_text().splitlines() if line.startswith("layer 0"))
    cells = row.split()[2:]
    assert cells[:6] == ["400,123.457", "MB", "500,123.457", "MB", "900,000.000", "MB"]
    assert cells[-2:] == ["123456.79", "234567.89"] and len(cells) == 11


def test_three_parties_have_their_own_stack_and_bytes_that_add_up() -> None:
    settings = PrivateSettings(protocol="aby3")
    cost = Cost(client_bytes=45e6, server_bytes=45e6, rounds=7)  # of all three
    traffic = Traffic(client_bytes=30_000_000, server_bytes=30_000_000, helper_bytes=30_000_000)
    call = Call("layer 0", 1.0, traffic)
    one = PassReport(
        length=4, rows=1, tokens=(1,), plaintext_tokens=(1,), largest_difference=0.1,
        largest_logit=3.0, calls=(call,), predicted={"layer 0": cost}, predicted_seconds={},
    )  # fmt: skip
    report = RunReport("SM", settings, ((1,),), ((1,),), (one,), (), cost)
    assert report.to_dict()["stack"] == "spu-aby3"
    for part in (report.to_dict()["passes"][0], report.to_dict()["passes"][0]["pieces"][0]):
        sent = sum(part[f"{party}_bytes"] for party in ("client", "server", "helper"))
        assert sent == part["predicted_bytes"] == 90e6 and part["ratio"] == 1
        assert "predicted_client_bytes" not in part
    head, *rows = report.to_text().splitlines()
    assert "three parties" in head and any("helper sent" in row for row in rows)
