#include "kernels/cpu/dispatch.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tests/cpp/kernels/run_kernel.h"

namespace aero::kernels::testing {
namespace {

TEST(Dispatch, TakesTheBestInstructionSetUnlessToldOtherwise) {
  EXPECT_EQ(cpu::isa_name(), cpu::available_isa_names().back());
  for (const std::string& name : cpu::available_isa_names()) {
    const ScopedIsa isa(name);
    EXPECT_EQ(cpu::isa_name(), name);
  }
}

TEST(Dispatch, RefusesAnUnknownNameAndSaysWhichOnesThereAre) {
  const ScopedIsa isa("neon9000");
  try {
    cpu::isa_name();
    FAIL() << "accepted";
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("AERO_CPU_ISA"), std::string::npos) << text;
#if defined(__x86_64__)
    EXPECT_NE(text.find("one of scalar, avx2, avx512, avx512bf16, amx, of"), std::string::npos)
        << text;
#elif defined(__aarch64__)
    EXPECT_NE(text.find("one of scalar, neon, neonbf16, of"), std::string::npos) << text;
#endif
    EXPECT_NE(text.find("neon9000"), std::string::npos) << text;
  }
}

TEST(Dispatch, AlwaysHasThePlainInstructionSet) {
  EXPECT_EQ(cpu::available_isa_names().front(), "scalar");
}

}  // namespace
}  // namespace aero::kernels::testing
