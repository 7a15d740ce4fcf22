"""Bytes between two parties against the simulator: operations, and a network piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from measured_grid import NetworkCell, grid, network_grid
from measured_rows import MeasuredRow, network_rows, operation_rows, set_up_row
from measurement import QUICK_RESOLUTION, measure

from aero.export import export_weights
from aero.models import AeroConfig, AeroForCausalLM

pytestmark = pytest.mark.private
CELLS, NETWORKS = grid(quick=True), network_grid(quick=True)


def export_random(cell: NetworkCell, folder: Path) -> None:
    torch.manual_seed(0)
    config = AeroConfig.from_label(cell.label, model=cell.model, **cell.sizes)
    export_weights(AeroForCausalLM(config), folder)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    measure(CELLS, NETWORKS, folder, export_random, wanted=QUICK_RESOLUTION)
    return folder


def assert_close(row: MeasuredRow) -> None:
    # Half a per cent as the model promises; extensions and refills that came early or late.
    assert abs(row.ratio - 1) < 0.005 + 2 * row.resolution, row


def test_operations_send_what_is_predicted(results: Path) -> None:
    rows = operation_rows(CELLS, results)
    assert len(rows) == len(CELLS)
    for row in rows:
        assert_close(row)
        # Fixed-point results; e^x of SPU's softmax is off by up to x^2 e^x / 512.
        assert row.largest_difference is not None
        assert row.largest_difference < 0.02, row


def test_the_set_up_sends_what_is_predicted_from_either_party(results: Path) -> None:
    row = set_up_row(results)
    assert row is not None
    assert_close(row)
    assert row.client_bytes == pytest.approx(row.predicted_client_bytes, rel=2e-3)


def test_a_network_sends_what_is_predicted_piece_by_piece(results: Path) -> None:
    rows = network_rows(NETWORKS, results)
    assert [row.name for row in rows] == ["embedding", "head", "argmax", "all layers", "total"]
    for row in rows:
        assert_close(row)
        assert row.largest_difference is not None
        assert row.largest_difference < 0.01, row
