// The time of one operation, and of all of them one after the other (the closed form).
//
// Times are whole nanoseconds, so that sums in any order are equal and a schedule can be compared
// with the closed form exactly.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "csrc/mpc/cost.h"
#include "csrc/mpc/cost_report.h"
#include "csrc/mpc/operation.h"
#include "csrc/mpc/profiles.h"
#include "csrc/mpc/stacks.h"

namespace aero::mpc {

using Nanoseconds = std::int64_t;

// Who evaluates homomorphically: the encryptor's partner where one party knows a factor, both (half
// each) where shares meet shares.
enum class Evaluator : std::uint8_t { kBoth, kClient, kServer };

struct Placement {
  Evaluator evaluator = Evaluator::kBoth;
  bool token_by_token = false;  // the stock embedding: one row at a time fills few threads
  bool shares_alone = false;    // no ciphertexts: each party works on its own shares
  double ring_products = 0;     // then: multiplications of a matrix product, at each party

  bool operator==(const Placement&) const = default;
};

Placement placement(const Stack& stack, const OperationShape& shape);

// An operation's demand on every resource.
struct OperationTime {
  std::array<Nanoseconds, 2> compute{};   // of client and server
  std::array<Nanoseconds, 2> transfer{};  // client to server, server to client
  Nanoseconds rounds = 0;                 // waiting for messages to arrive

  // Alone: the parties compute at once, a full-duplex link sends both ways at once.
  Nanoseconds compute_alone() const { return std::max(compute[0], compute[1]); }
  Nanoseconds transfer_alone(bool full_duplex) const {
    return full_duplex ? std::max(transfer[0], transfer[1]) : transfer[0] + transfer[1];
  }
  Nanoseconds alone(bool full_duplex) const {
    return compute_alone() + transfer_alone(full_duplex) + rounds;
  }

  bool operator==(const OperationTime&) const = default;
};

// Throws std::invalid_argument for an operation of more than a year.
OperationTime operation_time(const Cost& cost, const Placement& placement,
                             const NetworkProfile& network, const ComputeProfile& compute);

// A sum that throws std::invalid_argument where 64 bits do not hold it.
Nanoseconds added(Nanoseconds total, Nanoseconds more);

// A report's operations one after the other: bytes / bandwidth + rounds (RTT / 2 +
// software) + compute. `stack` is the one that the report was made with.
Nanoseconds closed_form(const CostReport& report, const Stack& stack, const NetworkProfile& network,
                        const ComputeProfile& compute);

}  // namespace aero::mpc
