#include "csrc/mpc/latency.h"

#include <cmath>
#include <stdexcept>
#include <variant>

namespace aero::mpc {
namespace {

// Far from the 292 years that 64 bits hold.
constexpr double kYearSeconds = 365.0 * 86400;

Nanoseconds whole_nanoseconds(double seconds) {
  if (!(seconds <= kYearSeconds))
    throw std::invalid_argument(
        "latency: an operation takes more than a year; choose a faster network or smaller sizes");
  return static_cast<Nanoseconds>(std::nearbyint(seconds * 1e9));
}

struct Placing {
  const Stack& stack;

  Placement operator()(const WeightProduct& product) const {
    return {stack.private_weights ? evaluator(product.shape) : Evaluator::kBoth, false};
  }
  Placement operator()(const EmbeddingShape& shape) const {
    const std::int64_t rows = stack.client_one_hot ? shape.tokens : 1;
    const MatmulShape product = {rows, shape.vocab_size, shape.width};
    return {stack.private_weights ? evaluator(product) : Evaluator::kBoth, !stack.client_one_hot};
  }
  template <class Shape>
  Placement operator()(const Shape&) const {
    return {};
  }

  // Of the first tile, which stands for all.
  Evaluator evaluator(const MatmulShape& shape) const {
    const std::size_t encryptor = product_encryptor(stack, shape);
    return encryptor == kClient ? Evaluator::kServer : Evaluator::kClient;
  }
};

// The multiplications of a matrix product as it is written; what the protocol adds to them is part
// of the rate.
struct RingProducts {
  const Stack& stack;

  static double of(const MatmulShape& shape) {
    return static_cast<double>(shape.rows) * static_cast<double>(shape.inner) *
           static_cast<double>(shape.columns);
  }
  double operator()(const WeightProduct& product) const { return of(product.shape); }
  double operator()(const HeadProduct& product) const {
    return static_cast<double>(product.heads) * of(product.shape);
  }
  double operator()(const EmbeddingShape& shape) const {
    const bool whole_table = stack.client_one_hot || stack.protocol != Protocol::kAby3;
    return whole_table ? of({shape.tokens, shape.vocab_size, shape.width}) : 0;
  }
  template <class Shape>
  double operator()(const Shape&) const {
    return 0;
  }
};

}  // namespace

Placement placement(const Stack& stack, const OperationShape& shape) {
  if (stack.protocol != Protocol::kCheetah)
    return {.shares_alone = true, .ring_products = std::visit(RingProducts{stack}, shape)};
  return std::visit(Placing{stack}, shape);
}

OperationTime operation_time(const Cost& cost, const Placement& placement,
                             const NetworkProfile& network, const ComputeProfile& compute) {
  const double product_seconds =
      placement.token_by_token ? compute.embedding_product_seconds : compute.ct_pt_product_seconds;
  const double homomorphic = cost.ct_pt_products * product_seconds +
                             cost.plaintext_encodings * compute.plaintext_encoding_seconds +
                             cost.automorphisms * compute.automorphism_seconds +
                             cost.elementwise_ciphertexts * compute.elementwise_ciphertext_seconds;
  // Both parties work through every OT.
  const double transfers = cost.ots * compute.ot_seconds;
  const std::array<double, 2> shares = {
      placement.evaluator == Evaluator::kClient ? 1.0 : 0.0,
      placement.evaluator == Evaluator::kServer ? 1.0 : 0.0,
  };
  const std::array<double, 2> slowdown = {compute.client_slowdown, 1.0};
  const std::array<double, 2> mbps = {network.uplink_mbps, network.downlink_mbps};
  OperationTime time;
  for (const std::size_t party : {kClient, kServer}) {
    const double share = placement.evaluator == Evaluator::kBoth ? 0.5 : shares[party];
    const double on_shares = placement.shares_alone
                                 ? cost.sent_bytes[party] * compute.share_byte_seconds +
                                       placement.ring_products * compute.ring_product_seconds
                                 : 0;
    time.compute[party] = whole_nanoseconds((homomorphic * share + transfers + on_shares) *
                                            slowdown[party] / static_cast<double>(compute.threads));
    // A third party sends over a link like the server's, while the server does.
    const double bytes = party == kServer ? std::max(cost.sent_bytes[party], cost.helper_bytes)
                                          : cost.sent_bytes[party];
    time.transfer[party] = whole_nanoseconds(bytes * 8 / (mbps[party] * 1e6));
  }
  time.rounds =
      whole_nanoseconds(cost.rounds * (network.round_trip_seconds / 2 + network.software_seconds));
  return time;
}

Nanoseconds added(Nanoseconds total, Nanoseconds more) {
  Nanoseconds sum = 0;
  if (__builtin_add_overflow(total, more, &sum))
    throw std::invalid_argument(
        "latency: the operations take more than 292 years together; choose a faster network or "
        "smaller sizes");
  return sum;
}

Nanoseconds closed_form(const CostReport& report, const Stack& stack, const NetworkProfile& network,
                        const ComputeProfile& compute) {
  Nanoseconds total = 0;
  for (std::size_t i = 0; i < report.operations.size(); ++i) {
    const OperationTime time = operation_time(
        report.operation_costs[i], placement(stack, report.operations[i].shape), network, compute);
    total = added(total, time.alone(network.full_duplex));
  }
  return total;
}

}  // namespace aero::mpc
