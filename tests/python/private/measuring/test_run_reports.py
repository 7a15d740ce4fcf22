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
