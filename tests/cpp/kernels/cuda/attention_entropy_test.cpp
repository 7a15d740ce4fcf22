// The CUDA passes of attention on an emulated GPU, against the definitions in double.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/cpp/kernels/cuda/attention_entropy_emulation_checks.h"

namespace aero::kernels::cuda::testing {
namespace {

const std::vector<Elements> kElements = {
    {DataType::kBFloat16}, {DataType::kFloat16}, {DataType::kFloat32}, {DataType::kFloat32, true}};

TEST(CudaAttentionEntropy, AgreesWithTheDefinitionsOverAwkwardSizes) {
  for (const Elements& elements : kElements)
    for (const bool is_causal : {false, true})
      for (const auto& [queries, keys] : std::vector<std::pair<int64_t, int64_t>>{
               {1, 1}, {1, 67}, {2, 3}, {13, 13}, {17, 40}, {40, 17}, {64, 64}, {67, 131}}) {
        AttentionCase c = one_head(elements, queries, keys, 64);
        c.is_causal = is_causal;
        expect_emulation_matches(c);
      }
}

// Widths that there are kernels for, widths between, and rows that are not whole chunks.
TEST(CudaAttentionEntropy, AgreesWithTheDefinitionsForEveryHeadWidth) {
  for (const Elements& elements : kElements)
    for (const int64_t head_dim : {1, 5, 8, 31, 32, 37, 64, 80, 96, 127, 128, 200, 256})
      expect_emulation_matches(one_head(elements, 37, 41, head_dim));
}

TEST(CudaAttentionEntropy, AgreesWithTheDefinitionsAcrossManyTiles) {
  for (const Elements& elements : kElements)
    for (const int64_t head_dim : {64, 256}) {
      AttentionCase c =
          one_head(elements, head_dim == 64 ? 131 : 70, head_dim == 64 ? 150 : 100, head_dim);
      expect_emulation_matches(c);
      c.is_causal = false, c.queries = 20;
      expect_emulation_matches(c);
    }
}

// The diagonal starts anywhere in a tile of keys and ends anywhere in a tile of queries.
TEST(CudaAttentionEntropy, AgreesWithTheDefinitionsForEveryOffsetOfTheDiagonal) {
  for (const int64_t queries : {2, 5, 9, 17, 33})
    for (int64_t more = -3; more < 20; more += 1 + (more > 4) * 4)
      if (queries + more > 0)
        expect_emulation_matches(one_head({DataType::kBFloat16}, queries, queries + more, 32));
}

TEST(CudaAttentionEntropy, AgreesWithTheDefinitionsForEveryMaskTemperatureAndLayout) {
  for (const Elements& elements : kElements)
    for (const MaskKind mask :
         {MaskKind::kNone, MaskKind::kPadding, MaskKind::kFull, MaskKind::kEmptyRows})
      for (const auto& [temperature, order] : std::vector<std::pair<TemperatureKind, Order>>{
               {TemperatureKind::kNone, Order::kHeadMajor},
               {TemperatureKind::kScalar, Order::kRowMajor},
               {TemperatureKind::kHead, Order::kPadded},
               {TemperatureKind::kRow, Order::kRowMajor},
               {TemperatureKind::kNegative, Order::kHeadMajor}}) {
        const bool is_causal = mask != MaskKind::kFull;
        expect_emulation_matches({.type = elements.type,
                                  .batch = 2,
                                  .queries = 19,
                                  .keys = 23,
                                  .is_causal = is_causal,
                                  .mask = mask,
                                  .temperature = temperature,
                                  .order = order,
                                  .allow_tf32 = elements.allow_tf32});
      }
}

TEST(CudaAttentionEntropy, SumsTheGradientsOfHeadsThatShareKeys) {
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat32})
    for (const int64_t key_heads : {1, 2, 6})
      expect_emulation_matches({.type = type,
                                .batch = 2,
                                .heads = 6,
                                .key_heads = key_heads,
                                .queries = 34,
                                .keys = 34,
                                .head_dim = 16});
}

TEST(CudaAttentionEntropy, TakesEverySubsetOfIncomingGradients) {
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat32})
    for (int used = 0; used < 8; ++used) {
      AttentionCase c{.type = type, .queries = 21, .keys = 29};
      c.has_dout = used & 1, c.has_dentropy = used & 2, c.has_dlogsumexp = used & 4;
      expect_emulation_matches(c);
    }
}

TEST(CudaAttentionEntropy, WritesOnlyTheGradientsAskedFor) {
  for (int asked = 0; asked < 16; ++asked) {
    AttentionProblem p({.queries = 21, .keys = 29});
    run_emulated(p.forward_params());
    AttentionEntropyBackwardParams params = p.backward_params();
    if (!(asked & 1)) params.dq = {};
    if (!(asked & 2)) params.dk = {};
    if (!(asked & 4)) params.dv = {};
    if (!(asked & 8)) params.dtemperature = nullptr;
    run_emulated(params);
    const AttentionReference reference(p);
    if (params.dq) expect_close("dq", p.dq.values(), reference.dq, 4e-6);
    if (params.dk) expect_close("dk", p.dk.values(), reference.dk, 4e-6);
    if (params.dv) expect_close("dv", p.dv.values(), reference.dv, 4e-6);
    if (params.dtemperature)
      expect_close("dtemperature", p.dtemperature.values(), reference.dtemperature, 1e-5);
  }
}

TEST(CudaAttentionEntropy, KeepsItsDigitsAtASmallTemperature) {
  for (const Elements& elements : kElements) {
    AttentionCase c = one_head(elements, 96, 96, 64);
    c.temperature = TemperatureKind::kSmall;
    expect_emulation_matches(c);
  }
}

TEST(CudaAttentionEntropy, OfQueriesThatSeeNoKeyPassesNothingOnWhateverComesBack) {
  for (const Elements& elements : kElements)
    for (AttentionCase c : cases_with_empty_rows({elements.type}, {3, 70})) {
      c.allow_tf32 = elements.allow_tf32;
      if (c.threads == 1) expect_emulation_matches(c);
    }
}

TEST(CudaAttentionEntropy, OfNoKeysOrNoQueriesWritesZerosOrNothing) {
  for (const Elements& elements : kElements)
    for (const auto& [queries, keys] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {0, 9}, {9, 0}}) {
      AttentionCase c = one_head(elements, queries, keys, 8);
      expect_emulation_matches(c);
      c.batch = 0;
      expect_emulation_matches(c);
    }
}

TEST(CudaAttentionEntropy, OfUniformScoresIsTheLogarithmOfTheVisibleKeys) {
  for (const Elements& elements : kElements) {
    AttentionProblem p(one_head(elements, 150, 150, 8));
    p.q.fill(0);
    run_emulated(p.forward_params());
    for (int64_t i = 0; i < 150; ++i) {
      const double expected = std::log(static_cast<double>(i + 1));
      EXPECT_NEAR(p.entropy.get(0, 0, i), expected, 2e-7 * (1 + expected));
      EXPECT_NEAR(p.logsumexp.get(0, 0, i), expected, 2e-7 * (1 + expected));
    }
  }
}

TEST(CudaAttentionEntropy, OfAOneHotRowIsExactlyZero) {
  for (const Elements& elements : kElements) {
    // Scores are about 1000 for key i and 0 for all others.
    AttentionCase c = one_head(elements, 70, 70, 70);
    c.is_causal = false, c.temperature = TemperatureKind::kNone;
    AttentionProblem p(c);
    p.q.for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
      p.q.set(b, h, i, d, i == d ? 1e4 : 0);
      p.k.set(b, h, i, d, i == d ? 1 : 0);
    });
    run_emulated(p.forward_params());
    for (const double entropy : p.entropy.values()) EXPECT_EQ(entropy, 0);
    if (elements.type == DataType::kFloat32) continue;  // v is split, or rounded, there
    p.out.for_each([&](int64_t b, int64_t h, int64_t i, int64_t d) {
      EXPECT_EQ(p.out.get(b, h, i, d), p.v.get(b, h, i, d));
    });
  }
}

TEST(CudaAttentionEntropy, LiesBetweenZeroAndTheLogarithmOfTheVisibleKeys) {
  for (const Elements& elements : kElements)
    for (const double deviation : {1e-3, 3.0, 30.0}) {
      AttentionProblem p(one_head(elements, 140, 140, 8), deviation);
      run_emulated(p.forward_params());
      for (int64_t i = 0; i < 140; ++i) {
        EXPECT_GE(p.entropy.get(0, 0, i), 0);
        EXPECT_LE(p.entropy.get(0, 0, i), std::log(static_cast<double>(i + 1)) * (1 + 1e-6) + 1e-7);
      }
    }
}

// A hidden key has no weight, and 0 times its product with a gradient must stay 0.
TEST(CudaAttentionEntropy, HiddenKeysBearHugeGradientsOfEntropy) {
  for (const MaskKind mask : {MaskKind::kNone, MaskKind::kFull, MaskKind::kEmptyRows}) {
    AttentionProblem p({.queries = 21, .keys = 29, .mask = mask});
    p.dentropy.fill(1e15);
    run_emulated(p.forward_params());
    run_emulated(p.backward_params());
    for (const Tensor* gradient : {&p.dq, &p.dk, &p.dv, &p.dtemperature})
      for (const double value : gradient->values()) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(CudaAttentionEntropy, PassesNotANumberOn) {
  for (const Elements& elements : kElements) {
    AttentionProblem p(one_head(elements, 70, 70, 8));
    p.k.set(0, 0, 66, 3, std::numeric_limits<double>::quiet_NaN());
    run_emulated(p.forward_params());
    EXPECT_FALSE(std::isnan(p.out.get(0, 0, 65, 0)));
    for (int64_t i = 66; i < 70; ++i) {
      EXPECT_TRUE(std::isnan(p.out.get(0, 0, i, 0)));
      EXPECT_TRUE(std::isnan(p.entropy.get(0, 0, i)));
      EXPECT_TRUE(std::isnan(p.logsumexp.get(0, 0, i)));
    }
  }
}

// Scores far below all others are no hidden keys, and far above them they leave no infinity.
TEST(CudaAttentionEntropy, TakesHugeScoresForWhatTheyAre) {
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat32})
    for (const double size : {-0x1p100, 0x1p100, 0x1p106}) {
      AttentionCase c = one_head({type}, 80, 80, 8);
      c.temperature = TemperatureKind::kNone;
      AttentionProblem p(c);
      p.q.fill(0), p.k.fill(0);
      for (int64_t i = 0; i < 80; ++i) p.q.set(0, 0, i, 0, 0x1p61);
      // Alike up to key 69, where the one that wins begins a tile of its own.
      const double key = size / 0x1p61;
      for (int64_t j = 0; j < 80; ++j) p.k.set(0, 0, j, 0, j < 70 ? key / 2 : key);
      run_emulated(p.forward_params());
      for (const int64_t i : {1, 69, 70, 79}) {
        const int64_t winners = i < 70 ? i + 1 : size < 0 ? 70 : i - 69;
        EXPECT_NEAR(p.entropy.get(0, 0, i), std::log(winners), 1e-5) << size << " " << i;
        const double top = (i < 70 || size < 0 ? size / 2 : size) / std::sqrt(8);
        EXPECT_NEAR(p.logsumexp.get(0, 0, i) / top, 1, 1e-5) << size << " " << i;
      }
    }
}

/// Everything that a call of both directions computes.
std::vector<double> all_results(AttentionProblem& p, bool allow_tf32) {
  p.test.allow_tf32 = allow_tf32;
  run_emulated(p.forward_params());
  run_emulated(p.backward_params());
  std::vector<double> all;
  for (const Tensor* result :
       {&p.out, &p.entropy, &p.logsumexp, &p.dq, &p.dk, &p.dv, &p.dtemperature})
    for (const double value : result->values()) all.push_back(value);
  return all;
}

// dO alone is also used as it is, in dO . O.
TEST(CudaAttentionEntropy, TensorFloat32SeesItsDigitsOfEveryInput) {
  for (const int64_t head_dim : {32, 96, 200}) {
    AttentionProblem p(one_head({DataType::kFloat32}, 40, 50, head_dim));
    round_to_tf32(p.dout);
    const std::vector<double> exact = all_results(p, false), fast = all_results(p, true);
    for (Tensor* input : {&p.q, &p.k, &p.v}) round_to_tf32(*input);
    EXPECT_EQ(all_results(p, true), fast);
    EXPECT_NE(all_results(p, false), exact);
  }
}

TEST(CudaAttentionEntropy, TensorFloat32NeedsAThirdOfTheProducts) {
  for (const int64_t head_dim : {32, 64, 128, 256}) {
    AttentionProblem p(one_head({DataType::kFloat32}, 70, 70, head_dim));
    int64_t forward[2], backward[2];
    for (const bool allow_tf32 : {false, true}) {
      p.test.allow_tf32 = allow_tf32;
      forward[allow_tf32] = run_emulated(p.forward_params()).instructions.multiplications;
      backward[allow_tf32] = run_emulated(p.backward_params()).instructions.multiplications;
    }
    EXPECT_EQ(forward[0], 3 * forward[1]);
    EXPECT_EQ(backward[0], 3 * backward[1]);
  }
}

TEST(CudaAttentionEntropy, HalfElementsAreMultipliedAsEver) {
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat16}) {
    AttentionProblem p(one_head({type}, 40, 50, 32));
    EXPECT_EQ(all_results(p, true), all_results(p, false));
  }
}

// The device cannot be asked before the call; the row says it.
TEST(CudaAttentionEntropy, OfATemperatureOfZeroIsNotANumberInItsRowAlone) {
  AttentionProblem p({.queries = 20, .keys = 20});
  p.temperature.set(0, 1, 7, 0, 0);
  run_emulated(p.forward_params());
  for (int64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(std::isnan(p.entropy.get(0, 1, i)), i == 7);
    EXPECT_EQ(std::isnan(p.out.get(0, 1, i, 0)), i == 7);
  }
}

TEST(CudaAttentionEntropy, WithoutAGradientOfOutThereIsNoneOfValues) {
  AttentionProblem p({.queries = 20, .keys = 20, .has_dout = false});
  p.temperature.set(0, 1, 7, 0, 0);
  run_emulated(p.forward_params());
  run_emulated(p.backward_params());
  p.dv.for_each([&](auto... at) { EXPECT_EQ(p.dv.get(at...), 0); });
}

// dS is 81,920 here, beyond float16; dQ is 14,482.
TEST(CudaAttentionEntropy, GradientsOfScoresAreScaledBeforeTheyBecomeFloat16) {
  AttentionProblem p({.type = DataType::kFloat16,
                      .heads = 1,
                      .key_heads = 1,
                      .queries = 1,
                      .keys = 2,
                      .head_dim = 128,
                      .is_causal = false,
                      .temperature = TemperatureKind::kNone,
                      .has_dentropy = false,
                      .has_dlogsumexp = false});
  p.q.fill(0), p.k.fill(0), p.dout.fill(160);
  for (const int64_t key : {0, 1}) {
    const double sign = key == 0 ? 1 : -1;
    p.k.set(0, 0, key, 0, sign);
    for (int64_t d = 0; d < 128; ++d) p.v.set(0, 0, key, d, 8 * sign);
  }
  run_emulated(p.forward_params());
  run_emulated(p.backward_params());
  EXPECT_NEAR(p.dq.get(0, 0, 0, 0), 2 * 81'920 / std::sqrt(128.0), 15);
  for (int64_t d = 1; d < 128; ++d) EXPECT_EQ(p.dq.get(0, 0, 0, d), 0);
}

TEST(CudaAttentionEntropy, TouchesNothingBesideItsTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement scope(placement);
    for (const Elements& elements : kElements)
      for (const int64_t head_dim : {24, 37})
        expect_emulation_matches(one_head(elements, 35, 70, head_dim));
  }
}

}  // namespace
}  // namespace aero::kernels::cuda::testing
