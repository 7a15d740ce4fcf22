// An event-driven schedule of an operation graph over both parties' processors and both directions
// of the link: when every operation runs, what limits the pass, and the gain of another speed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "csrc/mpc/latency.h"

namespace aero::mpc {

// Waiting for messages (rounds) occupies nothing, so any number of operations wait at once.
enum class Resource : std::uint8_t {
  kClientCompute,
  kServerCompute,
  kClientToServer,
  kServerToClient,
  kRounds,
};
inline constexpr std::size_t kNumResources = 5;

struct Step {
  OperationTime time;
  std::vector<std::size_t> inputs;  // steps that must be finished, all earlier
};

struct ScheduleOptions {
  // Off: one operation after the other, and in it computing, then sending, then waiting: the closed
  // form. On: an operation starts when its inputs are finished, and its computing and sending run
  // at once, as where ciphertexts are streamed; its messages have arrived when its rounds are
  // over.
  bool overlap = false;
  bool full_duplex = true;  // else both directions share one channel
};

// From start (inputs finished) to finish; the four parts add up to that span. With overlap the part
// that ended last counts as a whole, and `waiting` is how long it stood behind other operations.
struct ScheduledOperation {
  Nanoseconds start = 0;
  Nanoseconds finish = 0;
  Nanoseconds compute = 0;
  Nanoseconds transfer = 0;
  Nanoseconds rounds = 0;
  Nanoseconds waiting = 0;
  Resource bound = Resource::kRounds;  // which of the five took longest in that span

  bool operator==(const ScheduledOperation&) const = default;
};

// A time without interruption in which an operation uses a resource.
struct Segment {
  std::size_t operation = 0;
  Resource resource = Resource::kRounds;
  Nanoseconds start = 0;
  Nanoseconds finish = 0;

  bool operator==(const Segment&) const = default;
};

struct Schedule {
  Nanoseconds makespan = 0;
  std::vector<ScheduledOperation> operations;
  std::vector<std::size_t> critical_path;  // each starts when the one before it finishes
  std::array<Nanoseconds, kNumResources> busy{};
  std::vector<Segment> segments;  // in the order of their ends
};

// On every resource earlier operations come first and interrupt later ones, as their ciphertexts
// are sent and evaluated one by one. So an operation never waits for later ones, and a schedule
// with overlap is never longer than one without. Throws std::invalid_argument where an input is not
// an earlier step.
Schedule schedule(const std::vector<Step>& steps, const ScheduleOptions& options);

// The steps with step i `times_faster[i]` times as fast on all resources; infinity: without it.
std::vector<Step> sped_up(std::vector<Step> steps, const std::vector<double>& times_faster);

}  // namespace aero::mpc
