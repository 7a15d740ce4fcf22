"""Deliberate errors in the CUDA passes: the emulated GPU must tell each of them from the truth.

All errors of a driver are compiled into one program, which makes the one that its run names.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .emulated_gpu import COMPILE, ROOT, built, require_compiler, with_changed_kernels

# Compiling takes longer than running.
UNOPTIMIZED = "-O0"
# What no error below is in, which is half of what a driver includes.
HEADERS = ["<cstdio>", "<cstdlib>", "<exception>",
           '"tests/cpp/kernels/attention_entropy_reference.h"',
           '"tests/cpp/kernels/entropy_regularization_reference.h"',
           '"tests/cpp/kernels/temperature_softmax_reference.h"',
           '"tests/cpp/kernels/cuda/emulated_block.h"']  # fmt: skip

# The change in words, its file, the old expression or statement, the new one.
ATTENTION_MUTATIONS = [
    ("swizzle left out", "shared_rows.h", "column ^ (row & 7)", "column"),
    ("swizzle beyond the row", "shared_rows.h", "column ^ (row & 7)", "column ^ (row & 15)"),
    ("diagonal one key late", "attention_geometry.h", "block * 8 + n >= seen",
     "block * 8 + n > seen"),
    ("mask ignored", "attention_geometry.h", "!mask[n * visible.query_stride]", "false"),
    ("left fragments exchanged", "products.h", "rows.chunk(in_warp & 15, in_warp >> 4)",
     "rows.chunk((in_warp >> 4) * 8 + (in_warp & 7), in_warp >> 3 & 1)"),
    ("weights as operand exchanged", "products.h",
     "a[1] = Lane::pack(Element{}, sums[0][2], sums[0][3])",
     "a[1] = Lane::pack(Element{}, sums[1][0], sums[1][1])"),
    ("entropy not rescaled", "attention_entropy_forward.h",
     "factor * (sum.score_sum + delta * sum.sum)", "factor * sum.score_sum"),
    ("copy not waited for", "attention_geometry.h", "lane.template wait_copies<0>()",
     "lane.template wait_copies<1>()"),
    ("barrier left out", "attention_geometry.h",
     "lane.barrier();  // this tile is there, and the stage before it free", ""),
    ("half of a row summed", "lane.h", "value + lane.exchange(value, 2)", "value"),
]  # fmt: skip
FLOAT32_MUTATIONS = [
    ("float32: low parts left out", "products.h",
     "lane.multiply(TensorFloat32{}, sum, low, first.high, second.high);", ""),
    ("float32: TF32 where it was not asked for", "elements.h",
     "if (params.allow_tf32) return visit(TensorFloat32{});", "return visit(TensorFloat32{});"),
    ("TF32: exact where it was asked for", "elements.h", "return visit(TensorFloat32{});",
     "return visit(Float32{});"),
    ("TF32: operands cut off", "products.h",
     "word = Lane::round_to_tf32(__builtin_bit_cast(float, word));", ""),
    ("TF32: rounding not waited for", "products.h", "lane.barrier();", ""),
]  # fmt: skip
HEAD_MUTATIONS = [
    ("heads: swizzle of dS left out", "shared_rows.h", "column ^ (row >> 1 & 3)", "column"),
    ("heads: dS as operand not transposed", "products.h",
     "rows.chunk((in_warp >> 4) * 8 + (in_warp & 7), (in_warp >> 3 & 1) + block)",
     "rows.chunk(in_warp & 15, (in_warp >> 4) + block)"),
    ("heads: barrier left out", "attention_backward_heads.h",
     "lane.barrier();  // gradients of scores are there, and nobody needs the queries any more",
     ""),
    ("heads: dQ copied out before it is there", "attention_backward_heads.h",
     "lane.barrier();  // all rows are there", ""),
    ("heads: the first tile of keys adds to what was there", "attention_backward_heads.h",
     "p.dq && !pair.is_first", "!!p.dq"),
    ("heads: the sum of dQ begun anew", "attention_backward_heads.h",
     "p.dq && !pair.is_first", "false"),
    ("heads: dQ written a tile of keys too late", "attention_backward_heads.h",
     "of_head.end(query + kStreamed - 1) <= first + kStaying",
     "of_head.end(query + kStreamed - 1) < first + kStaying"),
    ("heads: row sums of other queries", "attention_backward_heads.h",
     "group / 2 * 8 + member_of(lane) * 2 + group % 2", "group * 4 + member_of(lane)"),
    ("heads: row sums over half of the groups", "lane.h",
     "lane.exchange(upper ? values[n] : values[n + count], 4 * count)",
     "(count == 1 ? 0.0f : lane.exchange(upper ? values[n] : values[n + count], 4 * count))"),
    ("heads: one of the heads that share keys", "attention_backward_heads.h",
     "pair.head.head += nth;", ""),
]  # fmt: skip
VARIED_MUTATIONS = [
    ("window: begins one key late", "attention_geometry.h", "block * 8 + n < begin",
     "block * 8 + n <= begin"),
    ("window: one query too many", "attention_geometry.h", "block * 8 + n >= shown",
     "block * 8 + n > shown"),
    ("window: its left edge not looked at", "attention_variants.h",
     "last_query + start <= first_key", "true"),
    ("window: right of the diagonal nothing", "attention_variants.h",
     "p.reach() < p.queries ? p.reach() : p.queries", "int64_t{0}"),
    ("window: tiles left out too early", "attention_variants.h", "query + start > key",
     "query + start >= key"),
    ("window: queries end too early", "attention_variants.h",
     "smaller(key, keys - 1) - start + 1", "smaller(key, keys - 1) - start"),
    ("cap: without its derivative", "attention_variants.h", "1 - bent * bent", "1.0f"),
    ("cap: scores not scaled by it", "attention_variants.h", "p.softcap * kLog2E",
     "p.scale * kLog2E"),
    ("sink: in all lanes of a row", "attention_entropy_forward.h",
     "state[r][half].sum = 0;  // one lane of the row's four", ""),
    ("sink: not in the temperature's gradient", "attention_entropy_backward.h",
     "sum = __builtin_fmaf(of.dscore, of.z, sum);", ""),
    ("largest score: of one lane", "attention_variants.h",
     "other > score || (other == score && other_key < key)", "false"),
    ("largest score: of the last tile", "attention_variants.h",
     "score > static_cast<const float*>(p.max_logits)[row]", "true"),
    ("largest score: its gradient left out of dQ", "attention_entropy_backward.h",
     "of.dscore += largest.at(at);", ""),
    ("largest score: its gradient left out of dK", "attention_backward_tiles.h",
     "of.dscore += largest.at(at);", ""),
    ("dropout: other weights", "attention_variants.h", "hash >= threshold", "hash > ~threshold"),
    ("dropout: weights that stay not raised", "attention_entropy_forward.h",
     "kVaries ? dropout_factor<float>(p.dropout) : 1.0f", "1.0f"),
    ("dropout: of other keys", "attention_entropy_forward.h",
     "key + block * 8 + 2 * member + n", "key + block * 8 + member + n"),
    ("dropout: left out of dQ", "attention_entropy_backward.h",
     "dropout.kept(dscore, own, at) * dropout.factor", "dscore"),
    ("dropout: left out of dK", "attention_backward_tiles.h",
     "dropout.kept(dscores[r][block][n], row_key, at) * dropout.factor", "dscores[r][block][n]"),
    ("dropout: left out of dV", "attention_backward_tiles.h",
     "dropout.kept(of.weight, row_key, at)", "of.weight"),
    ("dropout: values that stay not raised", "attention_entropy_backward.h", "sum *= kept;", ""),
]  # fmt: skip
ROW_MUTATIONS = [
    ("warps do not wait for each other", "row_team.h", "lane.barrier();", ""),
    ("one warp left out", "row_team.h", "warp < kWarps", "warp + 1 < kWarps"),
    ("softmax: lanes not rescaled", "temperature_softmax_passes.h",
     "state.rescale(row.exponent(state.maximum, top), exp2);", ""),
    ("softmax: diagonal one key late", "temperature_softmax_rows.h",
     "query + p.keys - p.queries + 1", "query + p.keys - p.queries + 2"),
    ("softmax: mask ignored", "temperature_softmax_rows.h",
     "(mask && !mask[(first + n) * stride])", "false"),
    ("softmax: sign of the temperature lost", "temperature_softmax_rows.h",
     "temperature < 0 ? -1.0f : 1.0f", "1.0f"),
    ("softmax: a long row not read again", "temperature_softmax_passes.h",
     "row.visible > kSegment", "false"),
    ("softmax: half a word written", "elements.h",
     "n % 2 ? 0xffffu : 0xffff0000u", "0u"),
    ("penalty: the first block adds up", "entropy_regularization_passes.h",
     "if (!lane.is_last_block(p.arrived, static_cast<uint32_t>(blocks))) return;",
     "lane.is_last_block(p.arrived, 1); if (block != 0) return;"),
    ("penalty: padding counts", "entropy_regularization_passes.h",
     "i < count && (!mask || mask[i * mask_stride])", "i < count"),
    ("penalty: mean over all rows", "entropy_regularization_passes.h",
     "count += counted ? 1.0f : 0.0f", "count += 1.0f"),
    ("feed-forward: columns exchanged", "scaled_ffn_passes.h",
     "tile + slot % kWarp * kPerChunk + slot / kWarp", "tile + slot"),
    ("feed-forward: trace of another diagonal", "scaled_ffn_passes.h",
     "column + n == row", "column + n == row + 1"),
    ("feed-forward: alpha once", "scaled_ffn_passes.h",
     "-(of_weight + of_bias) * inverse_alpha * inverse_alpha",
     "-(of_weight + of_bias) * inverse_alpha"),
]  # fmt: skip
PRODUCT_MUTATIONS = [
    ("product: weight turned", "matrix_product.cpp",
     "p.weight_is_transposed ? kTransposed : kAsItIs",
     "p.weight_is_transposed ? kAsItIs : kTransposed"),
    ("product: bias forgotten", "matrix_product.cpp",
     "p.bias ? kAddBias : kNoEpilogue", "kNoEpilogue"),
    ("product: alignment of rows not looked at", "matrix_product.cpp",
     "static_cast<uintptr_t>(row_bytes)", "uintptr_t{0}"),
    ("product: a description kept", "matrix_product.cpp",
     "if (description_) destroy_(description_);", ""),
    ("product: TF32 of every type", "matrix_product.cpp",
     "p.allow_tf32 && p.data_type == kernels::DataType::kFloat32", "p.allow_tf32"),
    ("product: never TF32", "matrix_product.cpp",
     "p.allow_tf32 && p.data_type == kernels::DataType::kFloat32", "false"),
    ("product: always TF32", "matrix_product.cpp",
     "p.allow_tf32 && p.data_type == kernels::DataType::kFloat32",
     "p.data_type == kernels::DataType::kFloat32"),
]  # fmt: skip
MUTATIONS = {
    "cuda_passes.cpp": ATTENTION_MUTATIONS,
    "cuda_float32_passes.cpp": FLOAT32_MUTATIONS,
    "cuda_head_pass.cpp": HEAD_MUTATIONS,
    "cuda_varied_passes.cpp": VARIED_MUTATIONS,
    "cuda_row_passes.cpp": ROW_MUTATIONS,
    "cuda_product.cpp": PRODUCT_MUTATIONS,
}
Run = Callable[[str, int], subprocess.CompletedProcess[str]]


def with_errors(folder: Path, mutations: list[tuple[str, str, str, str]]) -> Path:
    """A copy of the kernels in which the program's variable `error` chooses one, counted from 1."""
    choices = [
        f"if (error == {number}) {{ {new} }} else {{ {old}\n}}"
        if ";" in old
        else f"(error == {number} ? {new} : {old})"
        for number, (_, _, old, new) in enumerate(mutations, 1)
    ]
    changes = zip(mutations, choices, strict=True)
    return with_changed_kernels(folder, *((file, old, new) for (_, file, old, _), new in changes))


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags that include HEADERS, compiled once, and the variable that chooses an error."""
    require_compiler()
    header = tmp_path_factory.mktemp("headers") / "headers.h"
    includes = "".join(f"#include {name}\n" for name in HEADERS)
    choice = 'inline const int error = std::atoi(std::getenv("ERROR"));\n'
    header.write_text(includes + choice)
    command = [*COMPILE, UNOPTIMIZED, f"-I{ROOT}", "-x", "c++-header", str(header)]
    subprocess.run([*command, "-o", f"{header}.gch"], check=True)
    return ["-include", str(header), "-Winvalid-pch"]


@pytest.fixture(scope="module")
def run_driver(headers: list[str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a driver with the error of that number, or with none."""

    @functools.cache
    def program(driver: str) -> Path:
        folder = tmp_path_factory.mktemp("driver")
        kernels = with_errors(folder, MUTATIONS[driver])
        return built(driver, folder, kernels, UNOPTIMIZED, *headers)

    def run(driver: str, error: int) -> subprocess.CompletedProcess[str]:
        environment = {"ERROR": str(error)}
        return subprocess.run(
            [program(driver)], capture_output=True, text=True, timeout=300, env=environment
        )

    return run


@pytest.mark.parametrize("driver", MUTATIONS)
def test_the_passes_as_they_are_are_right(driver: str, run_driver: Run) -> None:
    done = run_driver(driver, 0)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("driver", "error"),
    [
        pytest.param(driver, number, id=mutation[0])
        for driver, mutations in MUTATIONS.items()
        for number, mutation in enumerate(mutations, 1)
    ],
)
def test_a_deliberate_error_is_seen(driver: str, error: int, run_driver: Run) -> None:
    assert run_driver(driver, error).returncode == 1
