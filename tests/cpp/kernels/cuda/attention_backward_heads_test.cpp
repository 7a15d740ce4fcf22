// The backward pass that does whole heads, on an emulated GPU: what is its own. That it agrees with
// the definitions over awkward sizes is in attention_entropy_test.cpp, beside the split passes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/cpp/kernels/cuda/attention_entropy_emulation_checks.h"

namespace aero::kernels::cuda::testing {
namespace {

/// Runs both directions, the backward one with `blocks` blocks that do whole heads.
Trace run_heads(AttentionProblem& p, int64_t blocks) {
  run_emulated(p.forward_params());
  clear_gradients(p);
  AttentionEntropyBackwardParams params = p.backward_params();
  params.head_blocks = blocks;
  return run_emulated(params);
}

std::vector<double> gradients(const AttentionProblem& p) {
  std::vector<double> all;
  for (const Tensor* gradient : {&p.dq, &p.dk, &p.dv, &p.dtemperature})
    for (const double value : gradient->values()) all.push_back(value);
  return all;
}

// A tile of keys is 128; sums of dQ are begun, added to and ended, forth and back.
TEST(CudaAttentionHeads, AgreeWithTheDefinitionsAcrossManyTilesOfKeys) {
  for (const bool is_causal : {false, true})
    for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 129}, {129, 129}, {40, 400}, {260, 140}, {257, 290}}) {
      AttentionCase c = one_head({DataType::kBFloat16}, queries, keys, queries == 40 ? 64 : 32);
      c.is_causal = is_causal;
      expect_emulation_matches(c);
    }
}

TEST(CudaAttentionHeads, AgreeWithTheDefinitionsForEveryMaskAndTemperatureAcrossTiles) {
  for (const auto& [mask, temperature] : std::vector<std::pair<MaskKind, TemperatureKind>>{
           {MaskKind::kPadding, TemperatureKind::kRow},
           {MaskKind::kFull, TemperatureKind::kNegative},
           {MaskKind::kEmptyRows, TemperatureKind::kHead},
           {MaskKind::kNone, TemperatureKind::kSmall}})
    expect_emulation_matches({.type = DataType::kFloat16,
                              .queries = 50,
                              .keys = 150,
                              .is_causal = mask != MaskKind::kFull,
                              .mask = mask,
                              .temperature = temperature,
                              .order = Order::kPadded});
}

TEST(CudaAttentionHeads, SumTheGradientsOfHeadsThatShareKeysAcrossTiles) {
  for (const int64_t key_heads : {1, 2})
    expect_emulation_matches({.type = DataType::kBFloat16,
                              .batch = 2,
                              .heads = 4,
                              .key_heads = key_heads,
                              .queries = 70,
                              .keys = 140});
}

TEST(CudaAttentionHeads, TakeEverySubsetOfIncomingGradientsAcrossTiles) {
  for (int used = 0; used < 8; ++used) {
    AttentionCase c = one_head({DataType::kBFloat16}, 40, 140, 24);
    c.has_dout = used & 1, c.has_dentropy = used & 2, c.has_dlogsumexp = used & 4;
    expect_emulation_matches(c);
  }
}

TEST(CudaAttentionHeads, WriteOnlyTheGradientsAskedFor) {
  const AttentionCase c = one_head({DataType::kBFloat16}, 40, 140, 24);
  AttentionProblem all(c);
  run_heads(all, 1);
  for (int asked = 0; asked < 16; ++asked) {
    AttentionProblem p(c);
    run_emulated(p.forward_params());
    AttentionEntropyBackwardParams params = p.backward_params();
    params.head_blocks = 1;
    if (!(asked & 1)) params.dq = {};
    if (!(asked & 2)) params.dk = {};
    if (!(asked & 4)) params.dv = {};
    if (!(asked & 8)) params.dtemperature = nullptr;
    run_emulated(params);
    const auto expect_same = [](auto asked_for, const Tensor& found, const Tensor& expected) {
      if (asked_for) {
        EXPECT_EQ(found.values(), expected.values());
      }
    };
    expect_same(params.dq, p.dq, all.dq);
    expect_same(params.dk, p.dk, all.dk);
    expect_same(params.dv, p.dv, all.dv);
    expect_same(params.dtemperature, p.dtemperature, all.dtemperature);
  }
}

TEST(CudaAttentionHeads, GiveTheSameBitsForAnyNumberOfBlocks) {
  AttentionProblem p({.type = DataType::kBFloat16, .batch = 3, .queries = 40, .keys = 140});
  run_heads(p, 1);
  const std::vector<double> expected = gradients(p);
  for (const int64_t blocks : {2, 5, 6, 9}) {
    EXPECT_EQ(run_heads(p, blocks).blocks, std::min<int64_t>(blocks, 6) + tiles_of(3 * 2 * 40, 16));
    EXPECT_EQ(gradients(p), expected);
  }
}

TEST(CudaAttentionHeads, TakeFiveProductsWhereTheSplitPassesTakeSeven) {
  AttentionCase c = one_head({DataType::kBFloat16}, 128, 256, 64);
  c.is_causal = false;
  AttentionProblem p(c);
  const Trace heads = run_heads(p, 1), split = run_heads(p, 0);
  // 16 x 8 sums of 16 products each.
  const int64_t product = 128 * 256 * 64 / (16 * 8 * 16);
  EXPECT_EQ(heads.instructions.multiplications, 5 * product);
  EXPECT_EQ(split.instructions.multiplications, 7 * product);
  EXPECT_EQ(heads.conflicts.stores, 0);
  // And shared memory is read less.
  EXPECT_LT(heads.instructions.matrix_loads, split.instructions.matrix_loads);
}

TEST(CudaAttentionHeads, NeedScratchForSumsOnlyBeyondOneTileOfKeys) {
  for (const int64_t keys : {1, 128, 129, 1024}) {
    AttentionEntropyBackwardParams p;
    p.data_type = DataType::kBFloat16;
    p.batch = 100, p.heads = 12, p.key_heads = 4, p.queries = 300, p.keys = keys;
    p.head_dim = 64;
    const int64_t rows = backward_bytes(p);
    p.head_blocks = head_blocks_for(p, 132);
    ASSERT_EQ(p.head_blocks, 264);
    // A block's three heads, of ten tiles of 32 queries.
    EXPECT_EQ(backward_bytes(p) - rows, keys > 128 ? 264 * 3 * 320 * 64 * 4 : 0);
  }
}

TEST(CudaAttentionHeads, AreChosenWhereTheyFillTheDeviceAndHaveAKernel) {
  AttentionEntropyBackwardParams p;
  p.data_type = DataType::kBFloat16;
  p.batch = 32, p.heads = p.key_heads = 12, p.queries = p.keys = 512, p.head_dim = 64;
  const auto blocks = [&](auto change, BackwardScheme scheme = BackwardScheme::kBySize) {
    AttentionEntropyBackwardParams changed = p;
    change(changed);
    return head_blocks_for(changed, 132, scheme);
  };
  const auto as_it_is = [](auto&) {};
  EXPECT_EQ(blocks(as_it_is), 264);
  EXPECT_EQ(blocks(as_it_is, BackwardScheme::kSplit), 0);
  EXPECT_EQ(blocks([](auto& x) { x.data_type = DataType::kFloat16; }), 264);
  EXPECT_EQ(blocks([](auto& x) { x.queries = x.keys = 2048; }), 264);
  EXPECT_EQ(blocks([](auto& x) { x.key_heads = 6; }), 192);
  EXPECT_EQ(blocks([](auto& x) { x.key_heads = 6, x.queries = 1025; }), 0);
  for (const BackwardScheme scheme : {BackwardScheme::kBySize, BackwardScheme::kHeads}) {
    EXPECT_EQ(blocks([](auto& x) { x.data_type = DataType::kFloat32; }, scheme), 0);
    EXPECT_EQ(blocks([](auto& x) { x.data_type = DataType::kFloat64; }, scheme), 0);
    EXPECT_EQ(blocks([](auto& x) { x.head_dim = 65; }, scheme), 0);
    EXPECT_EQ(blocks([](auto& x) { x.batch = 0; }, scheme), 0);
    // What the split passes alone compute.
    EXPECT_EQ(blocks([](auto& x) { x.window_left = 100; }, scheme), 0);
    EXPECT_EQ(blocks([](auto& x) { x.window_right = 0; }, scheme), 0);
    EXPECT_EQ(blocks([](auto& x) { x.softcap = 50; }, scheme), 0);
    EXPECT_EQ(blocks([](auto& x) { x.sinks.data = &x; }, scheme), 0);
    EXPECT_EQ(blocks([](auto& x) { x.dmax_logits = &x; }, scheme), 0);
    EXPECT_EQ(blocks([](auto& x) { x.key_heads = 6, x.queries = 67'108'865; }, scheme), 0);
    const bool is_forced = scheme == BackwardScheme::kHeads;
    EXPECT_EQ(blocks([](auto& x) { x.key_heads = 6, x.queries = 67'108'864; }, scheme),
              is_forced ? 192 : 0);
    EXPECT_EQ(blocks([](auto& x) { x.queries = 2049; }, scheme), is_forced ? 264 : 0);
    EXPECT_EQ(blocks([](auto& x) { x.keys = 2049; }, scheme), is_forced ? 264 : 0);
    // Seven products of 188 heads, five of 264 places, two rounds of them for 265.
    EXPECT_EQ(blocks([](auto& x) { x.batch = 188, x.heads = x.key_heads = 1; }, scheme),
              is_forced ? 188 : 0);
    EXPECT_EQ(blocks([](auto& x) { x.batch = 189, x.heads = x.key_heads = 1; }, scheme), 189);
    EXPECT_EQ(blocks([](auto& x) { x.batch = 265, x.heads = x.key_heads = 1; }, scheme),
              is_forced ? 264 : 0);
  }
}

TEST(CudaAttentionHeads, OfATemperatureOfZeroAreNotANumberInItsRowAlone) {
  AttentionProblem p({.type = DataType::kBFloat16, .queries = 40, .keys = 140});
  p.temperature.set(0, 1, 7, 0, 0);
  run_heads(p, 1);
  for (int64_t i = 0; i < 40; ++i) {
    EXPECT_EQ(std::isnan(p.dtemperature.get(0, 1, i)), i == 7);
    EXPECT_EQ(std::isnan(p.dq.get(0, 1, i, 0)), i == 7);
    EXPECT_FALSE(std::isnan(p.dq.get(0, 0, i, 0)));
  }
}

TEST(CudaAttentionHeads, WithoutAGradientOfOutThereIsNoneOfValues) {
  AttentionProblem p({.type = DataType::kBFloat16, .queries = 40, .keys = 140, .has_dout = false});
  p.temperature.set(0, 1, 7, 0, 0);
  run_heads(p, 1);
  p.dv.for_each([&](auto... at) { EXPECT_EQ(p.dv.get(at...), 0); });
}

TEST(CudaAttentionHeads, BearHugeGradientsOfEntropyAtHiddenKeys) {
  for (const MaskKind mask : {MaskKind::kNone, MaskKind::kFull, MaskKind::kEmptyRows}) {
    AttentionProblem p({.type = DataType::kBFloat16, .queries = 40, .keys = 140, .mask = mask});
    p.dentropy.fill(1e15);
    run_heads(p, 2);
    for (const double value : gradients(p)) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(CudaAttentionHeads, TouchNothingBesideTheirTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement scope(placement);
    for (const int64_t head_dim : {24, 37})
      expect_emulation_matches(one_head({DataType::kFloat16}, 35, 140, head_dim));
  }
}

}  // namespace
}  // namespace aero::kernels::cuda::testing
