#include "csrc/spec/label.h"

#include <gtest/gtest.h>

#include <cctype>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/spec/nearest_word.h"

namespace aero::spec {
namespace {

// Every canonical label with this K, put together from the grammar's text and not by the printer.
std::vector<std::string> canonical_labels(int num_pruned_ffns,
                                          const std::string& convolution = "") {
  std::vector<std::string> ffns{"",       "+G",     "+R",      "+LR(layer)", "+LR(global)",
                                "+FuFFN", "+ScFFN", "+ScFuFFN"};
  for (const std::string norm : {"+WNFFN", "+SNFFN"})
    for (const std::string set : {"", "(qk)", "(qk+ffn)", "(qkv+ffn)", "(qkvo+ffn)"})
      ffns.push_back(norm + set);
  const std::string suffix =
      convolution + (num_pruned_ffns == 0 ? "" : "_i" + std::to_string(num_pruned_ffns));
  std::vector<std::string> labels;
  for (const std::string shaped : {"", "SOTA:"})
    for (const bool regularized : {false, true})
      for (const std::string temperature : {"", "(t)", "(t:head)", "(t:scalar)"})
        for (const std::string norm : {"", "+LN", "+FN", "+FN(scalar)", "+DyT", "+Derf"})
          for (const std::string& ffn : ffns) {
            const std::string net = "SM" + temperature + norm + ffn + suffix;
            labels.push_back(shaped + (regularized ? "EReg(" + net + ")" : net));
          }
  return labels;
}

std::string error_of(const std::string& text) {
  try {
    parse_label(text);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Label, EveryCanonicalLabelPrintsAsItself) {
  std::set<std::string> printed;
  for (const int num_pruned_ffns : {0, 1, 12, 4096})
    for (const std::string& text : canonical_labels(num_pruned_ffns)) {
      EXPECT_EQ(print_label(parse_label(text)), text);
      printed.insert(text);
    }
  EXPECT_EQ(printed.size(), 4u * 2 * 2 * 4 * 6 * 18);
}

TEST(Label, EveryLabelWithAConvolutionPrintsAsItself) {
  for (const std::string convolution : {"+C2", "+C4", "+C8", "+D3", "+S2"})
    for (const int num_pruned_ffns : {0, 6})
      for (const std::string& text : canonical_labels(num_pruned_ffns, convolution))
        EXPECT_EQ(print_label(parse_label(text)), text);
}

TEST(Label, DifferentLabelsAreDifferentNetworks) {
  const auto labels = canonical_labels(0);
  std::vector<Label> parsed;
  for (const std::string& text : labels) parsed.push_back(parse_label(text));
  for (std::size_t i = 0; i < parsed.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      ASSERT_FALSE(parsed[i] == parsed[j]) << labels[i] << " " << labels[j];
}

TEST(Label, CaseDoesNotMatterOnInput) {
  std::mt19937 random(7);
  for (const std::string& canonical : canonical_labels(6)) {
    std::string text = canonical;
    for (char& letter : text)
      if (random() % 2 == 0)
        letter =
            static_cast<char>(std::isupper(letter) ? std::tolower(letter) : std::toupper(letter));
    EXPECT_EQ(print_label(parse_label(text)), canonical) << text;
  }
}

TEST(Label, SpelledOutDefaultsAreOmittedInPrint) {
  EXPECT_EQ(print_label(parse_label("SM+FN(channel)+R")), "SM+FN+R");
  EXPECT_EQ(print_label(parse_label("SM+WNFFN(ffn)")), "SM+WNFFN");
  EXPECT_EQ(print_label(parse_label("SM+SNFFN(ffn)_i0")), "SM+SNFFN");
  EXPECT_EQ(print_label(parse_label("SM_i06")), "SM_i6");
}

TEST(Label, FieldsAreWhatTheLabelSays) {
  EXPECT_EQ(parse_label("SM"), Label{});
  EXPECT_EQ(parse_label("SM+LN+G"), (Label{.norm = Norm::kLayer, .ffn = FeedForward::kGelu}));
  EXPECT_EQ(parse_label("SM+LN"), (Label{.norm = Norm::kLayer}));
  EXPECT_EQ(parse_label("SM+R"), (Label{.ffn = FeedForward::kRelu}));
  EXPECT_EQ(parse_label("SM+LR(layer)"), (Label{.ffn = FeedForward::kLeakyReluLayer}));
  EXPECT_EQ(parse_label("SM+LR(global)"), (Label{.ffn = FeedForward::kLeakyReluGlobal}));
  EXPECT_EQ(
      parse_label("SM+WNFFN(qkv+ffn)"),
      (Label{.ffn = FeedForward::kWeightNorm, .normalized_layers = NormalizedLayers::kQkvFfn}));
  EXPECT_EQ(parse_label("SM+SNFFN"), (Label{.ffn = FeedForward::kSpectralNorm}));
  EXPECT_EQ(parse_label("SM+FuFFN"), (Label{.ffn = FeedForward::kFused}));
  EXPECT_EQ(parse_label("SM+ScFFN"), (Label{.ffn = FeedForward::kScaled}));
  EXPECT_EQ(parse_label("SM+FN+ScFuFFN"),
            (Label{.norm = Norm::kFoldableChannel, .ffn = FeedForward::kScaledFused}));
  EXPECT_EQ(parse_label("SM+FN(scalar)"), (Label{.norm = Norm::kFoldableScalar}));
  EXPECT_EQ(parse_label("SM+DyT+G"),
            (Label{.norm = Norm::kDynamicTanh, .ffn = FeedForward::kGelu}));
  EXPECT_EQ(parse_label("sm+derf"), (Label{.norm = Norm::kDynamicErf}));
  EXPECT_EQ(
      parse_label("SOTA:SM+ScFuFFN_i1"),
      (Label{.shaped_attention = true, .ffn = FeedForward::kScaledFused, .num_pruned_ffns = 1}));
  EXPECT_EQ(parse_label("EReg(SM(t)+ScFuFFN_i6)"), (Label{.entropy_regularized = true,
                                                          .temperature = Temperature::kHeadPosition,
                                                          .ffn = FeedForward::kScaledFused,
                                                          .num_pruned_ffns = 6}));
  EXPECT_EQ(parse_label("EReg(SM+G)"),
            (Label{.entropy_regularized = true, .ffn = FeedForward::kGelu}));
  EXPECT_EQ(parse_label("SM+c4"),
            (Label{.convolution = Convolution::kFull, .convolution_taps = 4}));
  EXPECT_EQ(parse_label("SM+DyT+D8"), (Label{.norm = Norm::kDynamicTanh,
                                             .convolution = Convolution::kDepthwise,
                                             .convolution_taps = 8}));
  EXPECT_EQ(parse_label("SM+ScFuFFN+S02_i1"), (Label{.ffn = FeedForward::kScaledFused,
                                                     .convolution = Convolution::kTokenShift,
                                                     .convolution_taps = 2,
                                                     .num_pruned_ffns = 1}));
  EXPECT_EQ(parse_label("SM(t:head)"), (Label{.temperature = Temperature::kHead}));
  EXPECT_EQ(parse_label("SM(t:scalar)"), (Label{.temperature = Temperature::kScalar}));
}

struct BadLabel {
  std::string text;
  int position;
  std::string expected;  // among what the message expects there
  std::string nearest;
};

TEST(Label, ErrorsShowPositionExpectationAndNearestLabel) {
  const std::vector<BadLabel> bad_labels{
      {"", 1, "\"SM\"", "SM"},
      {"MS+G", 1, "\"SOTA:\"", "SM+G"},
      {"SMM", 3, "the end", "SM"},
      {"SM+", 4, "\"LN\"", "SM+G"},
      {"SM +G", 3, "\"+\"", "SM+G"},
      {"SM+LR", 6, "\"(layer)\" or \"(global)\"", "SM+LR(layer)"},
      {"SM+LR(globl)", 6, "\"(global)\"", "SM+LR(global)"},
      {"SM+ScFuFNN", 4, "\"ScFuFFN\"", "SM+ScFuFFN"},
      {"SM+G+LN", 6, "\"C\", \"D\" or \"S\" with a number of taps", "SM+G"},
      {"SM+C", 4, "with a number of taps", "SM+G"},
      {"SM+C1", 5, "a number of taps from 2 to 8", "SM+C2"},
      {"SM+R+D9", 7, "a number of taps from 2 to 8", "SM+R+D8"},
      {"SM+C4+G", 6, "\"_i\" or the end", "SM+C4"},
      {"SM+C4+S4", 6, "\"_i\" or the end", "SM+C4"},
      {"SM+ScFuFNN+C4_i2", 4, "\"ScFuFFN\"", "SM+ScFuFFN+C4_i2"},
      {"SM+LN+FN", 7, "\"G\"", "SM+LN+G"},
      {"SM+WNFFN(vo)", 9, "\"(qkvo+ffn)\"", "SM+WNFFN(qk)"},
      {"SM+FN(channel)+ScFuFNN", 16, "\"ScFuFFN\"", "SM+FN+ScFuFFN"},
      {"SM+ScFuFFN_ix6", 13, "a number of pruned FFNs from 0 to 4096", "SM+ScFuFFN"},
      {"SM+ScFuFFNi6", 11, "\"_i\"", "SM+ScFuFFN_i6"},
      {"SM_i99999999999999999999999", 5, "from 0 to 4096", "SM_i4096"},
      {"SM_i-1", 5, "a number", "SM"},
      {"EReg(SM(t)+G", 13, "\")\"", "EReg(SM(t)+G)"},
      {"EReg(SM+G)_i6", 11, "the end", "EReg(SM+G)"},
      {"EReg(SOTA:SM)", 6, "\"SM\"", "EReg(SM)"},
      {"SM+DyT(x)", 7, "\"_i\" or the end", "SM+DyT"},
      {"SM+DeRF+LN", 9, "\"G\"", "SM+Derf+G"},
      {"SM(t:row)", 3, "\"(t:head)\"", "SM(t)"},
  };
  for (const auto& [text, position, expected, nearest] : bad_labels) {
    const std::string error = error_of(text);
    SCOPED_TRACE(error);
    EXPECT_NE(error.find("at position " + std::to_string(position) + " "), std::string::npos);
    EXPECT_NE(error.find(expected, error.find("expected")), std::string::npos);
    EXPECT_TRUE(error.ends_with("nearest valid label: \"" + nearest + "\""));
  }
}

TEST(Label, ForeignBytesAreShownEscapedAndHugeTextIsCut) {
  EXPECT_NE(error_of("SM\xc3\xbc").find("got \"\\xc3\\xbc\""), std::string::npos);
  EXPECT_NE(error_of(std::string("SM\0G", 4)).find("\\x00"), std::string::npos);
  EXPECT_LT(error_of(std::string(1 << 20, 'x')).size(), 500u);
  EXPECT_EQ(spec::quoted("~\x7f"), "\"~\\x7f\"");
  EXPECT_EQ(spec::quoted(std::string(60, 'x')), '"' + std::string(60, 'x') + '"');
  EXPECT_EQ(spec::quoted(std::string(61, 'x')), '"' + std::string(60, 'x') + "...\"");
}

TEST(Label, OneWrongLetterIsAnErrorOrAnotherLabelAndNothingElse) {
  std::mt19937 random(11);
  const std::string alphabet = "SMtGRLNFfnu+()_:i6CD4 ";
  const std::vector<std::string> labels = canonical_labels(6);
  for (int round = 0; round < 60; ++round) {
    std::string text = labels[random() % labels.size()];
    text[random() % text.size()] = alphabet[random() % alphabet.size()];
    try {
      const std::string printed = print_label(parse_label(text));
      EXPECT_EQ(print_label(parse_label(printed)), printed) << text;
    } catch (const std::invalid_argument& error) {
      const std::string message = error.what();
      const std::string mark = "nearest valid label: \"";
      const std::string nearest = message.substr(message.find(mark) + mark.size());
      EXPECT_NO_THROW(parse_label(nearest.substr(0, nearest.size() - 1))) << message;
    }
  }
}

}  // namespace
}  // namespace aero::spec
