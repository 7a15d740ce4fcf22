#include "csrc/spec/fields.h"

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "csrc/spec/presets.h"

namespace aero::spec {
namespace {

ArchitectureSpec gpt2(const std::string& label, const FieldValues& overrides = {}) {
  return architecture_from_label(label, "gpt2", overrides);
}

std::string error_of(const ArchitectureSpec& spec, const std::string& name,
                     const FieldValue& value) {
  try {
    with_fields(spec, {{name, value}});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Fields, EveryFieldReadsBackAsItWasSet) {
  for (const char* label : {"SM", "SOTA:SM+LN+R", "EReg(SM(t:head)+FN(scalar)+WNFFN(qk)_i2)"})
    for (const auto model : preset_names()) {
      const ArchitectureSpec spec = architecture_from_label(label, model);
      EXPECT_EQ(from_fields(field_values(spec)), spec) << label << " " << model;
      EXPECT_EQ(with_fields(spec, field_values(spec)), spec) << label << " " << model;
      for (const auto& [name, value] : field_values(spec))
        EXPECT_EQ(field_value(spec, name), value);
    }
}

TEST(Fields, AMissingFieldIsNamed) {
  FieldValues values = field_values(gpt2("SM"));
  std::erase_if(values, [](const auto& value) { return value.first == "width"; });
  try {
    from_fields(values);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "ArchitectureSpec: missing \"width\"");
  }
}

TEST(Fields, ErrorsNameTheFieldTheRangeAndTheNearestName) {
  const ArchitectureSpec spec = gpt2("SM_i6");
  EXPECT_EQ(error_of(spec, "num_head", std::int64_t{6}),
            "ArchitectureSpec: there is no field \"num_head\"; did you mean \"num_heads\"?");
  EXPECT_EQ(error_of(spec, "num_layers", std::int64_t{0}),
            "ArchitectureSpec: num_layers must be an integer from 1 to 4096, got 0");
  EXPECT_EQ(error_of(spec, "vocab_size", std::int64_t{-5}),
            "ArchitectureSpec: vocab_size must be an integer from 1 to 268435456, got -5");
  EXPECT_EQ(error_of(spec, "width", 768.0),
            "ArchitectureSpec: width must be an integer from 1 to 16777216, got 768");
  EXPECT_EQ(error_of(spec, "width", true),
            "ArchitectureSpec: width must be an integer from 1 to 16777216, got True");
  EXPECT_EQ(error_of(spec, "tied_embeddings", std::int64_t{1}),
            "ArchitectureSpec: tied_embeddings must be True or False, got 1");
  EXPECT_EQ(error_of(spec, "final_norm", std::string("layr")),
            "ArchitectureSpec: final_norm must be \"none\", \"layer\", \"foldable\", "
            "\"dynamic_tanh\" or \"dynamic_erf\", got "
            "\"layr\"; did you mean \"layer\"?");
  EXPECT_EQ(error_of(spec, "num_layers", std::int64_t{5}),
            "ArchitectureSpec: num_pruned_ffns must be an integer from 0 to num_layers = 5, got 6");
  EXPECT_EQ(error_of(spec, "num_heads", std::int64_t{7}),
            "ArchitectureSpec: num_heads must be a divisor of width = 768 unless head_dim is "
            "given, got 7");
  EXPECT_EQ(error_of(spec, "rotary_fraction", 1.5),
            "ArchitectureSpec: rotary_fraction must be a number from 0 to 1, got 1.5");
  EXPECT_NE(error_of(spec, "rotary_fraction", std::numeric_limits<double>::quiet_NaN()),
            "no error");
  EXPECT_NE(error_of(spec, "rotary_fraction", 3.0 / 64.0).find("which gives 3"), std::string::npos);
  EXPECT_NE(error_of(spec, "rotary_fraction", 0.5 / 64.0).find("which gives 0"), std::string::npos);
  EXPECT_EQ(error_of(spec, "rotary_fraction", 1.0), "no error");
  EXPECT_NE(error_of(spec, "normalized_layers", std::string("qk")).find("weight_norm"),
            std::string::npos);
  EXPECT_NE(error_of(gpt2("SOTA:SM"), "parallel_residual", false).find("shaped attention"),
            std::string::npos);
  EXPECT_NE(
      [&] {
        try {
          gpt2("SOTA:SM", {{"num_heads", std::int64_t{5}}, {"head_dim", std::int64_t{64}}});
        } catch (const std::invalid_argument& error) {
          return std::string(error.what());
        }
        return std::string();
      }()
          .find("num_heads must be a divisor of width = 768 for shaped attention"),
      std::string::npos);
}

TEST(Fields, DefaultsFollowTheFieldsTheyDependOn) {
  const ArchitectureSpec six_heads = with_fields(gpt2("SM"), {{"num_heads", std::int64_t{6}}});
  EXPECT_EQ(six_heads.head_dim, 128);
  const ArchitectureSpec wide = with_fields(gpt2("SM"), {{"width", std::int64_t{1536}}});
  EXPECT_EQ(wide.head_dim, 128);
  EXPECT_EQ(wide.hidden_width, 6144);
  EXPECT_EQ(with_fields(gpt2("SM"), {{"norm", std::string("layer")}}), gpt2("SM+LN"));
  EXPECT_EQ(with_fields(gpt2("SM+LN"), {{"norm", std::string("foldable_scalar")}}),
            gpt2("SM+FN(scalar)"));
  EXPECT_EQ(with_fields(gpt2("SM"), {{"shaped_attention", true}}), gpt2("SOTA:SM"));
  EXPECT_EQ(with_fields(gpt2("SM+WNFFN(qk)"), {{"ffn", std::string("gelu")}}), gpt2("SM+G"));
}

TEST(Fields, ChosenValuesStay) {
  const ArchitectureSpec narrow_heads = gpt2("SM", {{"head_dim", std::int64_t{32}}});
  EXPECT_EQ(with_fields(narrow_heads, {{"num_heads", std::int64_t{5}}}).head_dim, 32);
  const ArchitectureSpec no_final = gpt2("SM+LN", {{"final_norm", std::string("none")}});
  EXPECT_EQ(no_final.final_norm, FinalNorm::kNone);
  EXPECT_EQ(with_fields(no_final, {{"norm", std::string("foldable_channel")}}).final_norm,
            FinalNorm::kNone);
}

TEST(Presets, FinalNormFollowsTheLabel) {
  EXPECT_EQ(gpt2("SM+ScFuFFN").final_norm, FinalNorm::kNone);
  EXPECT_EQ(gpt2("SM+LN+G").final_norm, FinalNorm::kLayer);
  EXPECT_EQ(gpt2("SM+FN+R").final_norm, FinalNorm::kFoldable);
  EXPECT_EQ(gpt2("SM+DyT+R").final_norm, FinalNorm::kDynamicTanh);
  EXPECT_EQ(gpt2("SM+Derf").final_norm, FinalNorm::kDynamicErf);
  EXPECT_EQ(gpt2("SOTA:SM+ScFFN").final_norm, FinalNorm::kLayer);
}

TEST(Presets, OverridesOfWhatTheLabelStatesAreErrors) {
  EXPECT_THROW(gpt2("SM", {{"norm", std::string("layer")}}), std::invalid_argument);
  EXPECT_THROW(gpt2("SM_i13"), std::invalid_argument);
  EXPECT_EQ(gpt2("SM_i13", {{"num_layers", std::int64_t{13}}}).num_pruned_ffns, 13);
}

TEST(Presets, UnknownNamesSuggestTheNearest) {
  try {
    architecture_from_label("SM", "pythia-70");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_TRUE(std::string(error.what()).ends_with("did you mean \"pythia-70m\"?"))
        << error.what();
  }
}

}  // namespace
}  // namespace aero::spec
