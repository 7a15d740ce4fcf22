#include "kernels/cpu/dispatch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/kernel_table.h"
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

const cpu::Kernels& kernels_of(const std::string& name) {
  const ScopedIsa isa(name);
  return cpu::kernels_in_use();
}

TEST(Dispatch, HasEveryKernelInEveryInstructionSet) {
  for (const std::string& name : cpu::available_isa_names()) {
    const cpu::Kernels& kernels = kernels_of(name);
    for (int type = 0; type < 4; ++type) {
      EXPECT_TRUE(kernels.attention_entropy.forward[type].run) << name << type;
      EXPECT_TRUE(kernels.attention_entropy.backward[type].run) << name << type;
      EXPECT_TRUE(kernels.temperature_softmax.forward[type].run) << name << type;
      EXPECT_TRUE(kernels.temperature_softmax.backward[type].run) << name << type;
    }
    EXPECT_TRUE(kernels.entropy_regularization.penalty) << name;
    EXPECT_TRUE(kernels.entropy_regularization_float64.penalty) << name;
    EXPECT_TRUE(kernels.scaled_ffn.epilogue) << name;
  }
}

TEST(Dispatch, TakesKernelsOfBfloat16FromASetForItAndAllOthersFromTheSetBefore) {
  const std::vector<std::string> names = cpu::available_isa_names();
  for (const auto& [before, with] : {std::pair("avx512", "avx512bf16"), {"neon", "neonbf16"}}) {
    if (std::find(names.begin(), names.end(), with) == names.end()) continue;
    const cpu::Kernels &one = kernels_of(before), &other = kernels_of(with);
    for (const DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
      const auto i = static_cast<int>(type);
      const bool is_same = type != DataType::kBFloat16;
      const auto &attention = one.attention_entropy, &others = other.attention_entropy;
      EXPECT_EQ(attention.forward[i].run == others.forward[i].run, is_same);
      EXPECT_EQ(attention.backward[i].run == others.backward[i].run, is_same);
      const auto &softmax = one.temperature_softmax, &other_softmax = other.temperature_softmax;
      EXPECT_EQ(softmax.forward[i].run == other_softmax.forward[i].run, is_same);
      EXPECT_EQ(softmax.backward[i].run == other_softmax.backward[i].run, is_same);
    }
    EXPECT_NE(one.scaled_ffn.epilogue, other.scaled_ffn.epilogue);
    EXPECT_EQ(one.entropy_regularization.sums, other.entropy_regularization.sums);
  }
}

}  // namespace
}  // namespace aero::kernels::testing
