#include "csrc/spec/counts.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "csrc/spec/presets.h"

namespace aero::spec {
namespace {

FieldValue integer(std::int64_t value) { return value; }

std::int64_t gpt2_parameters(const std::string& label, const FieldValues& overrides = {}) {
  return parameter_count(architecture_from_label(label, "gpt2", overrides));
}

TEST(ParameterCount, IsThatOfTheReleasedGpt2AndPythia) {
  EXPECT_EQ(gpt2_parameters("SM+LN+G", {{"context_length", integer(1024)}}), 124439808);
  EXPECT_EQ(parameter_count(architecture_from_label("SM+LN+G", "pythia-70m")), 70426624);
}

// Each choice adds or removes exactly its own parameters, at L = 12, H = 12, d = 768, T = 128.
TEST(ParameterCount, ChangesByWhatEachChoiceHas) {
  constexpr std::int64_t L = 12, H = 12, d = 768, F = 3072, T = 128, V = 50257;
  const std::int64_t plain = gpt2_parameters("SM");
  EXPECT_EQ(plain, V * d + T * d + L * (4 * (d * d + d) + 2 * d * F + F + d));
  EXPECT_EQ(gpt2_parameters("SM+LN") - plain, (2 * L + 1) * 2 * d);
  EXPECT_EQ(gpt2_parameters("SM+FN") - plain, (2 * L + 1) * d);
  EXPECT_EQ(gpt2_parameters("SM+FN(scalar)") - plain, (2 * L + 1) * d);
  EXPECT_EQ(gpt2_parameters("SM+LN", {{"final_norm", std::string("none")}}) - plain, 4 * L * d);
  EXPECT_EQ(gpt2_parameters("SM+LN_i5"), gpt2_parameters("SM_i5") + (2 * L - 5 + 1) * 2 * d);
  EXPECT_EQ(gpt2_parameters("SM+R"), plain);
  EXPECT_EQ(gpt2_parameters("SM+LR(layer)") - plain, L);
  EXPECT_EQ(gpt2_parameters("SM+LR(global)") - plain, 1);
  EXPECT_EQ(gpt2_parameters("SM+LR(global)_i12"), gpt2_parameters("SM_i12"));
  EXPECT_EQ(gpt2_parameters("SM+ScFFN") - plain, 2 * L);
  EXPECT_EQ(plain - gpt2_parameters("SM+FuFFN"), L * (2 * d * F + F - d * d));
  EXPECT_EQ(gpt2_parameters("SM+ScFuFFN") - gpt2_parameters("SM+ScFuFFN_i6"), 6 * (d * d + d + 2));
  EXPECT_EQ(gpt2_parameters("SM(t)") - plain, L * H * T);
  EXPECT_EQ(gpt2_parameters("SM(t:head)") - plain, L * H);
  EXPECT_EQ(gpt2_parameters("SM(t:scalar)") - plain, L);
  EXPECT_EQ(gpt2_parameters("SM", {{"tied_embeddings", false}}) - plain, V * d);
  EXPECT_EQ(plain - gpt2_parameters("SM", {{"rotary_fraction", 0.25}}), T * d);
  EXPECT_EQ(plain - gpt2_parameters("SM", {{"head_dim", integer(32)}}),
            L * (3 * (d + 1) + d) * (H * 32));
}

TEST(ParameterCount, WeightNormAddsOneGainPerOutputAndSpectralNormNothing) {
  constexpr std::int64_t L = 12, d = 768, F = 3072;
  const std::int64_t plain = gpt2_parameters("SM");
  EXPECT_EQ(gpt2_parameters("SM+WNFFN") - plain, L * (F + d));
  EXPECT_EQ(gpt2_parameters("SM+WNFFN(qk)") - plain, L * 2 * d);
  EXPECT_EQ(gpt2_parameters("SM+WNFFN(qk+ffn)") - plain, L * (2 * d + F + d));
  EXPECT_EQ(gpt2_parameters("SM+WNFFN(qkv+ffn)") - plain, L * (3 * d + F + d));
  EXPECT_EQ(gpt2_parameters("SM+WNFFN(qkvo+ffn)") - plain, L * (4 * d + F + d));
  EXPECT_EQ(gpt2_parameters("SOTA:SM+WNFFN(qkvo+ffn)") - gpt2_parameters("SOTA:SM"),
            L * (2 * d + F + d));
  EXPECT_EQ(gpt2_parameters("SM+WNFFN(qk)_i12") - gpt2_parameters("SM_i12"), L * 2 * d);
  EXPECT_EQ(gpt2_parameters("SM+SNFFN(qkvo+ffn)"), plain);
}

TEST(ParameterCount, OfShapedBlocks) {
  constexpr std::int64_t L = 12, H = 12, d = 768, T = 128, V = 50257;
  const std::int64_t outside = V * d + T * d + 2 * d;
  const std::int64_t attention = 2 * (d * d + d) + 3 * H;
  EXPECT_EQ(gpt2_parameters("SOTA:SM+ScFuFFN"), outside + L * (attention + d * d + d + 1));
  EXPECT_EQ(gpt2_parameters("SOTA:SM+ScFuFFN_i1"),
            outside + L * attention + (L - 1) * (d * d + d + 1));
  EXPECT_EQ(gpt2_parameters("SOTA:SM+LN+R") - gpt2_parameters("SOTA:SM+R"), L * 2 * d);
}

TEST(ParameterCount, ThresholdsCountInTrainingOnly) {
  const ArchitectureSpec spec = architecture_from_label("EReg(SM(t)+ScFuFFN)");
  EXPECT_EQ(parameter_count(spec), gpt2_parameters("SM(t)+ScFuFFN"));
  EXPECT_EQ(parameter_count(spec, true), parameter_count(spec) + 12 * 12);
  const ArchitectureSpec plain = architecture_from_label("SM(t)+ScFuFFN");
  EXPECT_EQ(parameter_count(plain, true), parameter_count(plain));
}

TEST(Flops, ArePerLayerFormulasOfThePaper) {
  constexpr std::int64_t L = 12, d = 768, T = 128;
  const auto paper = [](const std::string& label) {
    return flops(architecture_from_label(label), FlopsConvention::kPaper);
  };
  EXPECT_EQ(paper("SM+G").ffn, L * 16 * T * d * d);
  EXPECT_EQ(paper("SM+G").attention, L * (8 * T * d * d + 3 * T * T * d));
  EXPECT_EQ(paper("SM+G").lm_head, 0);
  EXPECT_EQ(paper("SM+G").total, paper("SM+G").ffn + paper("SM+G").attention);
  EXPECT_EQ(paper("SM+ScFuFFN_i6").ffn, 6 * 2 * T * d * d);
  EXPECT_EQ(paper("SOTA:SM+ScFFN").attention, L * (4 * T * d * d + 2 * T * T * d));
}

TEST(Flops, ExecutedCountsBothScoreProductsAndTheHead) {
  constexpr std::int64_t L = 12, d = 768, T = 128, V = 50257;
  const Flops executed = flops(architecture_from_label("SM+ScFuFFN"), FlopsConvention::kExecuted);
  EXPECT_EQ(executed.attention, L * (8 * T * d * d + 4 * T * T * d));
  EXPECT_EQ(executed.lm_head, 2 * T * d * V);
  EXPECT_EQ(executed.total, executed.ffn + executed.attention + executed.lm_head);
  // With 6 heads of 32 channels the inner width is 192; shaped values stay d wide.
  const FieldValues narrow{{"num_heads", integer(6)}, {"head_dim", integer(32)}};
  EXPECT_EQ(
      flops(architecture_from_label("SM", "gpt2", narrow), FlopsConvention::kExecuted).attention,
      L * (8 * T * d * 192 + 4 * T * T * 192));
  EXPECT_EQ(flops(architecture_from_label("SOTA:SM", "gpt2", narrow), FlopsConvention::kExecuted)
                .attention,
            L * (4 * T * d * 192 + 2 * T * T * (192 + d)));
}

TEST(Flops, TooLargeCountsAreErrors) {
  const ArchitectureSpec huge = architecture_from_label("SM", "gpt2",
                                                        {{"num_layers", integer(kMaxLayers)},
                                                         {"num_heads", integer(1)},
                                                         {"width", integer(kMaxWidth)},
                                                         {"hidden_width", integer(kMaxWidth)},
                                                         {"context_length", integer(kMaxContext)}});
  EXPECT_THROW(flops(huge, FlopsConvention::kPaper), std::invalid_argument);
  EXPECT_THROW(flops_convention("measured"), std::invalid_argument);
}

std::string operations(const std::string& label) {
  return to_string(nonlinear_operations(architecture_from_label(label)));
}

TEST(NonlinearOperations, AreThoseOfTheBlocksThatAreThere) {
  EXPECT_EQ(operations("SM+LN+G"), "SM:144xR^{128x128} LN:25xR^{128x768} G:12xR^{128x3072}");
  EXPECT_EQ(operations("SM+LN+R_i4"), "SM:144xR^{128x128} LN:21xR^{128x768} R:8xR^{128x3072}");
  EXPECT_EQ(operations("SM+LR(global)"), "SM:144xR^{128x128} LR:12xR^{128x3072}");
  EXPECT_EQ(operations("SM+FN+ScFuFFN"), "SM:144xR^{128x128}");
  EXPECT_EQ(operations("SOTA:SM+ScFFN"), "SM:144xR^{128x128} LN:1xR^{128x768}");
  EXPECT_EQ(operations("SOTA:SM+LN+R"), "SM:144xR^{128x128} LN:13xR^{128x768} R:12xR^{128x3072}");
}

}  // namespace
}  // namespace aero::spec
