#include "csrc/mpc/prices.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/mpc/operation_cost.h"

namespace aero::mpc {
namespace {

std::string error_of(const std::vector<PriceEntry>& entries) {
  try {
    with_prices({}, entries);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

Stack priced(const std::vector<PriceEntry>& entries) {
  Stack stack;
  stack.prices = with_prices(stack.prices, entries);
  return stack;
}

TEST(Prices, FactorsChangeBytesAndRoundsOnly) {
  const SoftmaxShape shape{12, 8, 96};
  const Cost derived = operation_cost({}, shape);
  const Cost half = operation_cost(
      priced({{"softmax", "bytes_factor", 0.5}, {"softmax", "rounds_factor", 0.5}}), shape);
  EXPECT_EQ(2 * half.comm_bytes(), derived.comm_bytes());
  EXPECT_EQ(half.rounds, std::nearbyint(derived.rounds / 2));
  EXPECT_EQ(half.ots, derived.ots);
  EXPECT_EQ(operation_cost(priced({{"gelu", "bytes_factor", 0.5}}), shape), derived);
}

TEST(Prices, UnitsAreThoseOfTheOperation) {
  const auto bytes = [](std::string_view operation, const OperationShape& shape) {
    return operation_cost(priced({{operation, "bytes_per_call", 1000000},
                                  {operation, "bytes_per_row", 10000},
                                  {operation, "bytes_per_input", 100},
                                  {operation, "bytes_per_output", 1},
                                  {operation, "rounds", 3},
                                  {operation, "client_share", 0.25}}),
                          shape);
  };
  EXPECT_EQ(bytes("weight_product", WeightProduct{{2, 3, 4}}).comm_bytes(), 1020608);
  EXPECT_EQ(bytes("head_product", HeadProduct{2, {2, 3, 4}}).comm_bytes(), 1041216);
  EXPECT_EQ(bytes("softmax", SoftmaxShape{2, 3, 6}).comm_bytes(), 1020606);
  EXPECT_EQ(bytes("layernorm", FunctionShape{&priced_function("layernorm"), 2, 3}).comm_bytes(),
            1020606);
  EXPECT_EQ(bytes("gelu", FunctionShape{&priced_function("gelu"), 2}).comm_bytes(), 1020202);
  EXPECT_EQ(bytes("relu", FunctionShape{&priced_function("leaky_relu"), 2}).comm_bytes(), 1020202);
  EXPECT_EQ(bytes("truncation", Truncation{2}).comm_bytes(), 1020202);
  EXPECT_EQ(bytes("embedding", EmbeddingShape{2, 5, 3}).comm_bytes(), 1021006);
  EXPECT_EQ(bytes("argmax", Argmax{4, 2}).comm_bytes(), 1020808);
  const Cost one = bytes("setup", SessionSetup{});
  EXPECT_EQ(one.rounds, 3);
  EXPECT_EQ(one.sent_bytes[kClient] * 4, one.comm_bytes());
  EXPECT_EQ(one.ots, 0);
}

TEST(Prices, OfProductsCountWhatACausalMaskLeaves) {
  const auto bytes = [](const char* field, Triangle triangle) {
    const HeadProduct product{2, {4, 3, 4}, triangle};
    return operation_cost(priced({{"head_product", field, 1}}), product).comm_bytes();
  };
  EXPECT_EQ(bytes("bytes_per_output", Triangle::kNone), 2 * 16);
  EXPECT_EQ(bytes("bytes_per_output", Triangle::kResult), 2 * 10);
  EXPECT_EQ(bytes("bytes_per_input", Triangle::kResult), 2 * 12);
  EXPECT_EQ(bytes("bytes_per_input", Triangle::kLeftFactor), 2 * 10);
  EXPECT_EQ(bytes("bytes_per_output", Triangle::kLeftFactor), 2 * 16);
}

TEST(Prices, CountTheLevelsOfARowsTree) {
  const auto rounds = [](std::string_view operation, const OperationShape& shape) {
    return operation_cost(priced({{operation, "rounds", 8}, {operation, "rounds_per_level", 2}}),
                          shape)
        .rounds;
  };
  EXPECT_EQ(rounds("softmax", SoftmaxShape{5, 1, 5}), 8);
  EXPECT_EQ(rounds("softmax", SoftmaxShape{5, 128, 640}), 22);
  EXPECT_EQ(rounds("softmax", SoftmaxShape{5, 129, 645}), 24);
  EXPECT_EQ(rounds("argmax", Argmax{3, 7}), 12);
  EXPECT_EQ(rounds("gelu", FunctionShape{&priced_function("gelu"), 128}), 8);
}

TEST(Prices, ErrorsNameTheOperationAndTheField) {
  EXPECT_EQ(error_of({{"softmx", "rounds", 1}}),
            "stack description: prices has no operation \"softmx\"; did you mean \"softmax\"?");
  EXPECT_EQ(error_of({{"softmax", "round", 1}}),
            "stack description: prices.softmax has no field \"round\"; did you mean \"rounds\"?");
  EXPECT_NE(error_of({{"softmax", "bytes_factor", -1}})
                .find("prices.softmax.bytes_factor must be a number from 0 to 1000"),
            std::string::npos);
  EXPECT_NE(error_of({{"gelu", "client_share", 1.5}}).find("from 0 to 1"), std::string::npos);
  EXPECT_NE(error_of({{"gelu", "bytes_factor", 1}, {"gelu", "rounds", 1}}).find("got both"),
            std::string::npos);
}

}  // namespace
}  // namespace aero::mpc
