// Cases of attention that the fuzzer kept, each of which reaches code that the others do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/cpp/kernels/attention_bytes.h"

namespace aero::kernels::testing {
namespace {

// Bytes in hexadecimal digits, a case a line: written by tests/fuzz/kernels/fuzz.py. A quarter of
// them run here; `make fuzz-kernels` begins with all.
constexpr size_t kEvery = 4;
const std::vector<std::string> kCorpus = {
#include "tests/cpp/kernels/attention_corpus.inc"
};

std::vector<uint8_t> bytes_of(const std::string& digits) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2)
    bytes.push_back(static_cast<uint8_t>(std::stoi(digits.substr(i, 2), nullptr, 16)));
  return bytes;
}

using AttentionCorpus = AttentionEntropy;
INSTANTIATE_TEST_SUITE_P(Isa, AttentionCorpus, ::testing::ValuesIn(attention_isa_names()),
                         [](const auto& info) { return info.param; });

TEST_P(AttentionCorpus, WhatTheFuzzerKeptMatchesTheDefinitions) {
  const auto types = data_types();
  for (size_t i = 0; i < kCorpus.size(); i += kEvery) {
    const std::string& digits = kCorpus[i];
    SCOPED_TRACE(digits);
    const std::vector<uint8_t> bytes = bytes_of(digits);
    const AttentionCase c = attention_case_of(bytes.data(), bytes.size());
    if (std::find(types.begin(), types.end(), c.type) != types.end())
      expect_matches_reference(c, true);
  }
}

}  // namespace
}  // namespace aero::kernels::testing
