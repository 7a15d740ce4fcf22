// libFuzzer's door to attention on the CPU: one case through every instruction set of this machine,
// forward and backward, against the definitions in double.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "tests/cpp/kernels/attention_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aero::kernels;
  using namespace aero::kernels::testing;
  const AttentionCase c = attention_case_of(data, size);
  for (const std::string& name : cpu::available_isa_names()) {
    const ScopedIsa isa(name);
    expect_matches_reference(c, true);
  }
  if (::testing::UnitTest::GetInstance()->Failed()) std::abort();
  return 0;
}
