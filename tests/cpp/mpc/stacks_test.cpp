#include "csrc/mpc/stacks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace aero::mpc {
namespace {

using spec::FieldValue;

std::string error_of(const spec::FieldValues& values) {
  try {
    with_fields(Stack{}, values);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Stacks, DefaultIsThePapersStack) { EXPECT_EQ(stack("spu-2024"), Stack{}); }

TEST(Stacks, AreDistinct) {
  for (const auto a : stack_names())
    for (const auto b : optimized_stack_names()) EXPECT_NE(stack(a), stack(b)) << a << " " << b;
  EXPECT_NE(stack("spu-0.9.5"), stack("openbumblebee"));
}

TEST(Stacks, UnknownNameListsTheNames) {
  try {
    stack("spu-2025");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("\"openbumblebee\""), std::string::npos);
  }
}

TEST(Stacks, FieldsReadWhatWithFieldsWrote) {
  for (const auto name : optimized_stack_names())
    EXPECT_EQ(with_fields(Stack{}, field_values(stack(name))), stack(name)) << name;
  EXPECT_EQ(with_fields(Stack{}, field_values(stack("openbumblebee"))), stack("openbumblebee"));
}

TEST(Stacks, ErrorsNameTheFieldAndItsRange) {
  EXPECT_EQ(error_of({{"exp_squarings", FieldValue{std::int64_t{0}}}}),
            "simulate: exp_squarings must be an integer from 1 to 17, got 0");
  EXPECT_EQ(error_of({{"exp_squarings", FieldValue{true}}}),
            "simulate: exp_squarings must be an integer from 1 to 17, got True");
  EXPECT_EQ(error_of({{"mul_share", FieldValue{std::int64_t{1}}}}),
            "simulate: mul_share must be True or False, got 1");
  EXPECT_EQ(error_of({{"gelu", FieldValue{std::string("exact")}}}),
            "simulate: gelu must be \"tanh\", \"segment\", \"piecewise\", \"erf\" or \"erfc\", got "
            "\"exact\"");
  EXPECT_EQ(error_of({{"silu", FieldValue{std::string("erf")}}}),
            "simulate: silu must be \"tanh\" or \"logistic\", got \"erf\"");
  EXPECT_EQ(error_of({{"silu", FieldValue{true}}}),
            "simulate: silu must be \"tanh\" or \"logistic\", got True");
  EXPECT_EQ(error_of({{"absorb_ffn", FieldValue{std::string("maybe")}}}),
            "simulate: absorb_ffn must be True, False or \"where_legal\", got \"maybe\"");
  EXPECT_NE(error_of({{"exp_squaring", FieldValue{std::int64_t{5}}}}).find("exp_squarings"),
            std::string::npos);
}

}  // namespace
}  // namespace aero::mpc
