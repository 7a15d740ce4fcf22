#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "csrc/mpc/functions.h"
#include "csrc/mpc/operation_cost.h"
#include "csrc/mpc/protocols/composites.h"
#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/matmul.h"
#include "csrc/mpc/protocols/primitives.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {
namespace {

struct Measured {
  const char* stack;
  std::string_view function;
  double bytes;  // of all parties, of 16,384 elements
};

// Sent in SPU 0.9.5.
constexpr std::array kMeasured{
    Measured{"spu-semi2k", "relu", 2359296},
    Measured{"spu-aby3", "relu", 2818048},
    Measured{"spu-semi2k", "leaky_relu", 2490368},
    Measured{"spu-aby3", "leaky_relu", 3276800},
    Measured{"spu-semi2k", "gelu", 12976128},
    Measured{"spu-aby3", "gelu", 18153472},
    Measured{"spu-semi2k", "silu", 11403264},
    Measured{"spu-aby3", "silu", 15532032},
    Measured{"spu-semi2k", "logistic", 19824640},
    Measured{"spu-aby3", "logistic", 29163520},
    Measured{"spu-semi2k", "dynamic_tanh", 11927552},
    Measured{"spu-aby3", "dynamic_tanh", 15925248},
};

TEST(ShareProtocols, SendWhatWasMeasuredToTheByte) {
  for (const Measured& one : kMeasured)
    EXPECT_NEAR(priced_function(one.function).cost(stack(one.stack), 16384, 1).comm_bytes(),
                one.bytes, 1e-3)
        << one.stack << " " << one.function;
}

// x times jax.nn.sigmoid(x), whose exp nothing clips.
TEST(ShareProtocols, SendOfSiluByTheLogisticFunctionWhatWasMeasured) {
  const std::pair<const char*, double> measured[] = {{"spu-semi2k", 20480000},
                                                     {"spu-aby3", 30015488}};
  for (const auto& [name, bytes] : measured) {
    Stack one = stack(name);
    one.silu = Silu::kLogistic;
    EXPECT_NEAR(priced_function("silu").cost(one, 16384, 1).comm_bytes(), bytes, 1e-3) << name;
  }
}

// Every message of SEMI2K is waited for: 181 messages of each party in GELU by erfc.
TEST(Semi2k, RoundsAreMessages) {
  Stack exact = stack("spu-semi2k");
  exact.gelu = Gelu::kErfc;
  EXPECT_EQ(gelu(exact, 16384).rounds, 181);
  EXPECT_NEAR(gelu(exact, 16384).comm_bytes(), 63930368, 1e-3);
  EXPECT_EQ(argmax(stack("spu-semi2k"), 256).rounds, 315);
  EXPECT_NEAR(argmax(stack("spu-semi2k"), 256).comm_bytes(), 191488, 1e-3);
}

TEST(Semi2k, ItsDealerSendsAWordForEachElementOfAProduct) {
  const Stack semi2k = stack("spu-semi2k");
  EXPECT_EQ(product(semi2k, 100).dealer_bytes, 800);
  EXPECT_EQ(matmul(semi2k, {64, 96, 48}, RightFactor::kShared).dealer_bytes, 64 * 48 * 8);
  EXPECT_EQ(product(semi2k, 100).comm_bytes(), 3200);
}

// 64 x 96 x 48 with its truncation sent 196,608 and 159,744 bytes; a table of 200 rows of 32, for
// ten tokens, 1,483,200 and 77,240.
TEST(ShareProtocols, ProductsAndTablesSendWhatWasMeasured) {
  const auto bytes = [](const char* name) {
    const Stack one = stack(name);
    return (matmul(one, {64, 96, 48}, RightFactor::kShared) + truncation(one, 64 * 48))
        .comm_bytes();
  };
  EXPECT_NEAR(bytes("spu-semi2k"), 196608, 1e-3);
  EXPECT_NEAR(bytes("spu-aby3"), 159744, 1e-3);
  EXPECT_NEAR(embedding(stack("spu-semi2k"), {10, 200, 32}).comm_bytes(), 1483200, 1e-3);
  EXPECT_NEAR(embedding(stack("spu-aby3"), {10, 200, 32}).comm_bytes(), 77240, 1e-3);
  EXPECT_NEAR(embedding(stack("spu-aby3"), {1, 4096, 32}).comm_bytes(), 9308, 1e-3);
}

// Of the client's one-hot rows ABY3's owner sends both others a share; SEMI2K's seeds do it.
TEST(Aby3, AVectorOfOnePartyIsSharedByItsOwner) {
  Stack hot = stack("spu-aby3");
  hot.client_one_hot = true;
  EXPECT_NEAR(embedding(hot, {10, 200, 32}).comm_bytes(), 34560 + 2560 + 2560, 1e-3);
  hot = stack("spu-semi2k");
  hot.client_one_hot = true;
  EXPECT_NEAR(embedding(hot, {10, 200, 32}).comm_bytes(), 2 * 67200, 1e-3);
}

// 10 x 64 times 64 x 96, then 1 x 64, sent 116,224 and, the weight being kept, 17,920 and 1,792.
TEST(Semi2k, OpensAKeptWeightOnce) {
  const Stack semi2k = stack("spu-semi2k");
  const auto bytes = [&](std::int64_t rows, bool opened) {
    return operation_cost(semi2k, WeightProduct{{rows, 64, 96}, opened}).comm_bytes();
  };
  EXPECT_NEAR(bytes(10, false), 116224, 1e-3);
  EXPECT_NEAR(bytes(10, true), 17920, 1e-3);
  EXPECT_NEAR(bytes(1, true), 1792, 1e-3);
  Stack hot = semi2k;
  hot.client_one_hot = true;
  EXPECT_NEAR(embedding(hot, {10, 200, 32, true}).comm_bytes(), 16 * 10 * 200, 1e-3);
  // Tiles of 256 MiB are not kept.
  EXPECT_EQ(operation_cost(semi2k, WeightProduct{{1, 768, 50257}, true}),
            operation_cost(semi2k, WeightProduct{{1, 768, 50257}, false}));
  EXPECT_THROW(with_fields(stack("spu-aby3"), {{"cached_weights", true}}), std::invalid_argument);
  EXPECT_THROW(with_fields(stack("spu-0.9.5"), {{"cached_weights", true}}), std::invalid_argument);
}

TEST(WeightProduct, AboveTheLargestIsTheSumOfItsSlices) {
  for (const char* name : {"spu-0.9.5", "spu-semi2k", "spu-aby3"}) {
    Stack sliced = stack(name);
    sliced.largest_product = 64 * 30;
    const auto product = [&](std::int64_t columns) {
      return matmul(sliced, {10, 64, columns}, RightFactor::kShared);
    };
    // Four slices of 24, 24, 24 and 23 columns.
    EXPECT_EQ(weight_matmul(sliced, {10, 64, 95}, Slices::kColumns, false),
              sequential(product(24), 3) + product(23))
        << name;
    EXPECT_EQ(weight_matmul(sliced, {10, 64, 30}, Slices::kColumns, false), product(30)) << name;
    EXPECT_EQ(weight_matmul(sliced, {10, 95, 64}, Slices::kInner, false),
              sequential(matmul(sliced, {10, 24, 64}, RightFactor::kShared), 3) +
                  matmul(sliced, {10, 23, 64}, RightFactor::kShared))
        << name;
  }
}

TEST(ShareProtocols, RefuseWhatOnlyCiphertextsHave) {
  for (const char* name : {"spu-semi2k", "spu-aby3"}) {
    EXPECT_THROW(with_fields(stack(name), {{"mul_share", true}}), std::invalid_argument);
    EXPECT_THROW(with_fields(stack(name), {{"clip_bits", std::int64_t{50}}}),
                 std::invalid_argument);
    EXPECT_THROW(with_fields(stack(name), {{"gelu", std::string("segment")}}),
                 std::invalid_argument);
    EXPECT_NO_THROW(with_fields(stack(name), {{"exp_squarings", std::int64_t{5}}}));
  }
}

}  // namespace
}  // namespace aero::mpc
