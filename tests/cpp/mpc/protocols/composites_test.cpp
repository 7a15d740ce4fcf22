#include "csrc/mpc/protocols/composites.h"

#include <gtest/gtest.h>

#include <string_view>

#include "csrc/mpc/functions.h"
#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/matmul.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"

namespace aero::mpc {
namespace {

Cost function_cost(std::string_view name, const Stack& stack, std::int64_t rows,
                   std::int64_t width = 1) {
  return priced_function(name).cost(stack, rows, width);
}

// Bytes without those of Ferret's extensions: 0.213 bit per OT.
double payload(const Cost& cost) {
  return cost.comm_bytes() - cost.ots * 1280 * 13 * 16 / (10485760 - 452000 - 1280 * 13);
}

// Measured between two parties for 128 x 3072: 30.376 MB by rank 0 and 8.356 MB by rank 1 without
// Ferret extensions, of which each sends its own: 80 and 16 OTs per element at 0.0258 bytes.
TEST(Relu, SendsWhatWasMeasuredFromEachParty) {
  const Cost cost = relu(Stack{}, 128 * 3072);
  EXPECT_NEAR(cost.sent_bytes[kClient] / 1e6, 30.376 + 0.836, 0.002);
  EXPECT_NEAR(cost.sent_bytes[kServer] / 1e6, 8.356 + 0.167, 0.002);
  EXPECT_EQ(cost.rounds, 23);
}

TEST(Relu, NarrowerComparisonsSendFewerBits) {
  const Stack narrow{.comparison_bits = 40};
  EXPECT_EQ(relu(narrow, 7), comparison(7, 40) + multiplexer(7));
  EXPECT_LT(relu(narrow, 7).comm_bytes(), relu(Stack{}, 7).comm_bytes());
}

// Of 16,384 elements 1,314,816 and 350,208 bytes were sent, no Ferret extension among them.
TEST(LeakyRelu, IsReluAndOneTruncation) {
  EXPECT_EQ(function_cost("leaky_relu", Stack{}, 5), relu(Stack{}, 5) + truncation(5));
  EXPECT_NEAR(payload(function_cost("leaky_relu", Stack{}, 16384)), 1314816 + 350208, 1);
}

TEST(Exponential, WithoutClipIsATruncationAndItsSquarings) {
  const Stack stack{.exp_squarings = 1, .exp_clip = false};
  EXPECT_EQ(exponential(stack, 9), truncation(9, 1) + square(stack, 9) + truncation(9));
}

TEST(Softmax, OfOneColumnNeedsNoMaximum) {
  Stack bound;
  bound.static_max = true;
  EXPECT_EQ(softmax(Stack{}, {4, 1, 4}), softmax(bound, {4, 1, 4}));
}

TEST(Softmax, WithoutBroadcastTakesOneReciprocalPerElement) {
  const Stack stack{.broadcast_reciprocal = false};
  EXPECT_NEAR(softmax(stack, {8, 16, 128}).ots - softmax(Stack{}, {8, 16, 128}).ots,
              reciprocal(stack, 128).ots - reciprocal(stack, 8).ots, 1e-9);
}

// The largest of 61 columns: 5 halvings, and the 4 columns that were left over; of 64: 6 halvings.
TEST(Softmax, OfOddLengthsWaitsForWhatIsLeftOver) {
  const double step = relu(Stack{}, 1).rounds;
  const auto maximum = [](std::int64_t columns) {
    const SoftmaxShape shape{3, columns, 3 * columns};
    return softmax(Stack{}, shape).rounds - softmax({.static_max = true}, shape).rounds;
  };
  EXPECT_EQ(maximum(61), (5 + 4) * step);
  EXPECT_EQ(maximum(64), 6 * step);
}

// Four heads at 128 positions, 8 of whose channels rotate, sent 24,576 and 1,024 bytes.
TEST(Truncation, OfChannelsTimesCosAndSinIsAllThatRotaryPositionsSend) {
  EXPECT_NEAR(2 * payload(truncation(4 * 128 * 8)), 24576 + 1024, 1e-6);
}

// Two heads of 64 x 128 times a shared factor each sent 1,837,149 and 1,789,712 bytes, a product of
// whole ciphertexts, which are compressed and vary in length by 40 bytes, and its truncation.
TEST(WeightScaling, IsAProductAndATruncation) {
  const Stack shared{.mul_share = true};
  EXPECT_EQ(weight_scaling(shared, 7), product(shared, 7) + truncation(7));
  EXPECT_NEAR(payload(weight_scaling(shared, 2 * 64 * 128)), 1837149 + 1789712, 600);
  const Stack known{.private_weights = true};
  EXPECT_EQ(weight_scaling(known, 7), private_product(known, 7) + truncation(7));
}

// 4,096 magnitudes sent 881,812 and 763,667 bytes in one run, which had one refill of triples.
TEST(Gelu, OfErfcIsThreePolynomialsWithTwoReciprocalsAndAnExponential) {
  const Stack exact{.mul_share = true, .gelu = Gelu::kErfc};
  const std::int64_t n = 65536;
  Stack plain = exact;
  plain.exp_clip = false;
  const double parts = 23 * (product(exact, n) + truncation(n)).comm_bytes() +
                       2 * reciprocal(exact, n).comm_bytes() + exponential(plain, n).comm_bytes();
  const double rest = gelu(exact, n).comm_bytes() - parts;
  const Cost magnitude = comparison(n) + bit_to_arithmetic(n) + product(exact, n);
  EXPECT_NEAR(
      rest,
      magnitude.comm_bytes() + 4 * relu(exact, n).comm_bytes() + 5 * truncation(n).comm_bytes(), 1);
  const Cost few = comparison(4096) + bit_to_arithmetic(4096) + product(exact, 4096);
  EXPECT_NEAR(payload(few), 881812 + 763667, 1000);
}

// SPU 0.9.5 sent 3,813 bytes per element of 32 x 512.
TEST(Gelu, OfErfIsOneErfAndOneProduct) {
  const Stack exact{.mul_share = true, .gelu = Gelu::kErf};
  const std::int64_t n = 32 * 512;
  EXPECT_NEAR(gelu(exact, n).comm_bytes() / n, 3813, 5);
  EXPECT_EQ(gelu(exact, n).ots,
            (error_function(exact, n) + product(exact, n)).ots + 3 * truncation(n).ots);
}

// SPU 0.9.5 sent 3,784 bytes per element of 32 x 512, and in another run 3,789. In a stack with
// exp in Z_2^32 it stays as it is: of either sign it has no room there.
TEST(Logistic, IsAnExponentialThatNothingClipsAndAReciprocal) {
  const std::int64_t n = 32 * 512;
  Stack plain{.mul_share = true};
  EXPECT_NEAR(logistic(plain, n).comm_bytes() / n, 3789, 5);
  const Cost found = logistic(plain, n);
  plain.exp_clip = false;
  EXPECT_EQ(found, exponential(plain, n) + reciprocal(plain, n));
  plain.exp_ring_bits = RingBits::k32;
  EXPECT_EQ(found, logistic(plain, n));
}

// OTs per element: the truncations and the message back take 1 each, 6 of them; a choice takes 2, 3
// of them; the 6 digits compared 24, and the trees of three thresholds 5 ANDs of 2 for each.
TEST(Gelu, OfSegmentsComparesWithThreeThresholdsAtOnce) {
  EXPECT_EQ(gelu({.gelu = Gelu::kSegment}, 8192).ots, (6 + 3 * 2 + 24 + 3 * 5 * 2) * 8192);
}

// Of 64 bits a comparison takes 94 OTs and 19 rounds, one after the other here; 10 truncations;
// and one choice's OTs with the rounds of three.
TEST(Gelu, PiecewiseComparesThreeTimesInSequence) {
  const Cost cost = gelu({.gelu = Gelu::kPiecewise}, 8192);
  EXPECT_EQ(cost.ots, (3 * 94 + 10 + 2) * 8192);
  EXPECT_EQ(cost.rounds, 3 * 19 + 4 * (2 + 2) + 6 * 2 + 3 * 4);
}

// Of 8,192 elements SPU 0.9.5 sent 11,085,961 and 12,352,217 bytes for tanh, and 17,858,249 and
// 16,785,106 for erf, among those of erf two extensions of Ferret; ciphertexts vary in length by
// some kB.
TEST(DynamicNorm, IsAlphaAFunctionOfSpuAndAGain) {
  const Stack measured{.mul_share = true};
  const auto function = [&](std::string_view which) {
    return payload(function_cost(which, measured, 8192)) -
           2 * payload(weight_scaling(measured, 8192));
  };
  EXPECT_NEAR(function("dynamic_tanh"), 11085961 + 12352217, 6000);
  EXPECT_NEAR(function("dynamic_erf"), 17858249 + 16785106 - 2 * 266259, 6000);
}

// A comparison takes 94 OTs and 19 rounds, a choice 2 and 4, a truncation 1 and 2, a product 2
// rounds. Tanh by hand: two comparisons with choices; 12 truncations, of alpha, gain, the fifth,
// the sum and nine products, one of which is a square.
TEST(DynamicNorm, CountsByHand) {
  const Cost tanh = function_cost("dynamic_tanh", Stack{}, 8192);
  EXPECT_EQ(tanh.ots, (2 * (94 + 2) + 13) * 8192);
  EXPECT_EQ(tanh.rounds, 2 * (19 + 4) + 13 * 2 + 11 * 2);
}

TEST(DynamicNorm, OfErfIsTwoComparisonsThreePowersTwoSquaresAndAReciprocal) {
  const Stack stack;
  const std::int64_t n = 8192;
  const Cost power = product(stack, n) + truncation(n);
  const Cost powers = product(stack, 2 * n) + truncation(2 * n);
  const Cost square_ = square(stack, n) + truncation(n);
  // A reciprocal takes a sign off and puts it back, which erf does by itself.
  const Cost inverse = reciprocal(stack, n);
  const Cost sum = sequential(weight_scaling(stack, n), 2) + power + powers + truncation(n) +
                   sequential(square_, 2) + inverse + sequential(relu(stack, n), 2);
  const Cost erf = function_cost("dynamic_erf", stack, n);
  EXPECT_NEAR(erf.comm_bytes(), (sum.comm_bytes() - product(stack, n).comm_bytes()), 1e-3);
  EXPECT_EQ(erf.rounds, sum.rounds - product(stack, n).rounds);
}

TEST(LayerNorm, WithPrivateGainTakesOneOleInsteadOfAProduct) {
  const Stack shared;
  const Stack hidden{.private_weights = true};
  const double saved = function_cost("layernorm", shared, 128, 768).comm_bytes() -
                       function_cost("layernorm", hidden, 128, 768).comm_bytes();
  EXPECT_NEAR(
      saved,
      product(shared, 128 * 768).comm_bytes() - private_product(shared, 128 * 768).comm_bytes(),
      1e-3);
}

TEST(Embedding, OfClientRowsIsOneProductWithAPrivateTable) {
  const Stack stack{.private_weights = true, .client_one_hot = true};
  EXPECT_EQ(embedding(stack, {128, 16384, 768}), plaintext_product(stack, {128, 16384, 768}));
}

// Measured for 32 tokens, 1,024 words and 128 channels: 994.2 kB by either party.
TEST(Embedding, OfClientRowsIsTwoProductsWithASharedTable) {
  const Cost cost = embedding({.client_one_hot = true}, {32, 1024, 128});
  EXPECT_NEAR(cost.sent_bytes[kClient], 994200, 200);
  EXPECT_NEAR(cost.sent_bytes[kServer], 994167, 200);
}

TEST(Embedding, InStockSpuRunsTokenByToken) {
  const Cost one = embedding(Stack{}, {1, 1000, 64});
  EXPECT_EQ(embedding(Stack{}, {7, 1000, 64}), sequential(one, 7));
  EXPECT_EQ(one.rounds, 10 + 2 + 2);  // equality, bit to arithmetic, product
}

// Messages of two parties say so, a client's 52 per token and 20 once: comparisons wait for 19
// messages and send 18 from either side.
TEST(Embedding, ThatClampsItsIndicesWaitsForThem) {
  const Stack clamped{.program_steps = true};
  const EmbeddingShape tokens{32, 1000, 64};
  EXPECT_EQ(embedding(clamped, tokens).rounds, 23 + 32 * (14 + 2 * 23));
  const double more = payload(embedding(clamped, tokens)) - payload(embedding(Stack{}, tokens));
  // Two clamps of two numbers per token, 296 and 184 bytes each between two parties.
  EXPECT_NEAR(more, 32 * 2 * (296 + 184) + payload(relu(Stack{}, 32)), 1e-6);
}

// Measured per token of 1,024 words and 128 channels: 238.68 kB by rank 0 and 267.07 kB by rank 1
// with a private table, 484.87 and 451.93 kB with a shared one. Of that 0.7 and 0.4 kB prepare the
// index; messages on so few elements are padded.
TEST(Embedding, ConvertsRowsTwiceBeforeAPrivateTable) {
  const EmbeddingShape token{1, 1024, 128};
  const double extensions = 0.0266 * 79 * 1024;  // of about as many OTs per word
  const Cost one = embedding({.private_weights = true}, token);
  EXPECT_NEAR(one.sent_bytes[kClient] - extensions, 238683 - 700, 800);
  EXPECT_NEAR(one.sent_bytes[kServer], 267068 - 400, 800);
  const Cost both = embedding(Stack{}, token);
  EXPECT_NEAR(both.sent_bytes[kClient] - extensions, 484872 - 700, 800);
  EXPECT_NEAR(both.sent_bytes[kServer], 451932 - 400, 800);
}

TEST(Argmax, TakesFloorLog2PlusPopcountMinusOneSteps) {
  constexpr double kStep = 2 * 19 + 2 * 10 + 2 * 4 + 3 * 2;
  EXPECT_EQ(argmax(Stack{}, 16384).rounds, 14 * kStep);
  EXPECT_EQ(argmax(Stack{}, 50257).rounds, 20 * kStep);
  EXPECT_EQ(argmax(Stack{}, 1).rounds, 0);
}

// Of 2, 4, 7 and 8 values a client sent 128, 192, 320 and 256 messages, 64 per step.
TEST(Argmax, OfAProgramEndsWithItsFirstValue) {
  const double step = argmax(Stack{}, 2).rounds;
  const Stack program{.program_steps = true};
  for (const auto& [elements, messages] : {std::pair{2, 128}, {4, 192}, {7, 320}, {8, 256}})
    EXPECT_EQ(argmax(program, elements).rounds, step * messages / 64) << elements;
}

// Sent by two parties; of 50,257 values without the two to four Ferret extensions among them.
TEST(Argmax, SendsWhatTwoPartiesSentOfAnyLength) {
  const Stack program{.program_steps = true};
  for (const auto& [elements, bytes] : {std::pair{2, 1376 + 1120},
                                        {3, 2064 + 1680},
                                        {7, 3856 + 2896},
                                        {8, 3584 + 2368},
                                        {127, 33792 + 13888},
                                        {128, 31600 + 11184},
                                        {50257, 11403376 + 3362608}})
    EXPECT_NEAR(payload(argmax(program, elements)), bytes, 1e-3) << elements;
}

// Of 4,096 values 350,664 and 121,304 bytes were sent.
TEST(Argmax, WithoutTiesIsOneComparisonAndTwoSelectionsPerNode) {
  const Stack any{.argmax_ties = false};
  EXPECT_EQ(argmax(any, 16384).rounds, 14 * (19 + 2 * 4));
  EXPECT_NEAR(payload(argmax(any, 4096)), 350664 + 121304, 1e-3);
}

// Rows side by side share the steps, and fill up their messages together.
TEST(Argmax, OfManyRowsWaitsAsLongAsOfOne) {
  const Cost one = argmax(Stack{}, 1000);
  const Cost many = argmax(Stack{}, 1000, 128);
  EXPECT_EQ(many.rounds, one.rounds);
  // 999 nodes of each; that of one row ends with its initial value.
  EXPECT_NEAR(many.ots, 128 * one.ots * 999 / 1000, 1e-6);
  EXPECT_LT(many.comm_bytes(), 128 * one.comm_bytes());
}

// Measured over 8,192 rows: 21.955 to 22.223 MB in four runs, of which one or two extensions of
// 0.26626 MB. The powers u^3 and u^4 are one product of 16,384 elements, which takes whole
// ciphertexts where two of 8,192 would take cached triples.
TEST(ReciprocalSquareRoot, MultipliesTwoPowersAtOnce) {
  const Cost cost = reciprocal_square_root(Stack{.mul_share = true}, 8192);
  EXPECT_NEAR(cost.comm_bytes() / 1e6 - 0.26626 * cost.ots / 10.017e6, 21.955 - 0.266, 0.003);
  EXPECT_EQ(cost.elementwise_ciphertexts, 4 * 8 + 2 * 4 * 1.5);
}

// Few rows, whose six products took cached triples, two words of 8 bytes opened for each.
TEST(ReciprocalSquareRoot, OfFewRowsFillsUpItsMessages) {
  const Stack stack{.mul_share = true};
  const double triple = product(stack, 1).comm_bytes();
  for (const auto& [rows, bytes] :
       {std::pair{1, 808 + 528}, {2, 1560 + 912}, {9, 6952 + 3664}, {33, 25336 + 13040}})
    EXPECT_NEAR(payload(reciprocal_square_root(stack, rows)) - 6 * rows * (triple - 32), bytes,
                1e-3)
        << rows;
}

}  // namespace
}  // namespace aero::mpc
