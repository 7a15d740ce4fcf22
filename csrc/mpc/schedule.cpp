#include "csrc/mpc/schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <queue>
#include <set>
#include <stdexcept>
#include <string>

namespace aero::mpc {
namespace {

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
constexpr std::size_t kNumLanes = 4;
using Tasks = std::vector<Resource>;

Nanoseconds duration(const OperationTime& time, Resource resource) {
  switch (resource) {
    case Resource::kClientCompute:
      return time.compute[kClient];
    case Resource::kServerCompute:
      return time.compute[kServer];
    case Resource::kClientToServer:
      return time.transfer[kClient];
    case Resource::kServerToClient:
      return time.transfer[kServer];
    case Resource::kRounds:
      break;
  }
  return time.rounds;
}

// A task is one operation's use of one resource. Operations pass through stages; the tasks of a
// stage run at once.
const std::vector<Tasks>& stages(bool overlap) {
  static const std::vector<Tasks> one_by_one = {
      {Resource::kClientCompute, Resource::kServerCompute},
      {Resource::kClientToServer, Resource::kServerToClient},
      {Resource::kRounds}};
  static const std::vector<Tasks> at_once = {{Resource::kClientCompute, Resource::kServerCompute,
                                              Resource::kClientToServer, Resource::kServerToClient},
                                             {Resource::kRounds}};
  return overlap ? at_once : one_by_one;
}

class Simulation {
 public:
  Simulation(const std::vector<Step>& steps, const ScheduleOptions& options)
      : steps_(steps), options_(options), stages_(stages(options.overlap)), states_(steps.size()) {
    result_.operations.resize(steps.size());
    link();
  }

  Schedule run() {
    for (std::size_t i = 0; i < steps_.size(); ++i)
      if (states_[i].missing_inputs == 0) ready_.push_back(i);
    start_ready();
    for (Nanoseconds next = next_event(); next != kNever; next = next_event()) {
      now_ = next;
      finish_tasks();
      start_ready();
    }
    result_.makespan = now_;
    return std::move(result_);
  }

 private:
  struct State {
    std::size_t missing_inputs = 0;
    std::vector<std::size_t> successors;
    std::size_t stage = 0;
    std::size_t open_tasks = 0;
    std::array<Nanoseconds, kNumResources> remaining{};
  };

  struct Running {
    std::size_t operation;
    Resource resource;
    Nanoseconds start;
  };

  struct Lane {
    std::set<std::pair<std::size_t, Resource>> waiting;
    std::optional<Running> running;
  };

  using Arrival = std::pair<Nanoseconds, std::size_t>;

  void link() {
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      for (const std::size_t input : steps_[i].inputs)
        if (input >= i)
          throw std::invalid_argument("schedule: inputs must be earlier operations, got " +
                                      std::to_string(input) + " for operation " +
                                      std::to_string(i));
      if (options_.overlap)
        for (const std::size_t input : steps_[i].inputs) depend(i, input);
      else if (i > 0)
        depend(i, i - 1);
    }
  }

  void depend(std::size_t operation, std::size_t input) {
    states_[input].successors.push_back(operation);
    ++states_[operation].missing_inputs;
  }

  std::size_t lane_of(Resource resource) const {
    const bool shared = !options_.full_duplex && resource == Resource::kServerToClient;
    return static_cast<std::size_t>(shared ? Resource::kClientToServer : resource);
  }

  void start_ready() {
    while (!ready_.empty()) {
      const std::size_t operation = ready_.back();
      ready_.pop_back();
      result_.operations[operation].start = now_;
      enter_stage(operation);
    }
    for (Lane& lane : lanes_) dispatch(lane);
  }

  // Tasks of no duration are done at once; so may be whole stages and operations.
  void enter_stage(std::size_t operation) {
    State& state = states_[operation];
    for (; state.stage < stages_.size(); ++state.stage) {
      for (const Resource resource : stages_[state.stage]) release(operation, resource);
      if (state.open_tasks > 0) return;
    }
    result_.operations[operation].finish = now_;
    for (const std::size_t successor : state.successors)
      if (--states_[successor].missing_inputs == 0) ready_.push_back(successor);
  }

  void release(std::size_t operation, Resource resource) {
    const Nanoseconds length = duration(steps_[operation].time, resource);
    if (length == 0) return;
    ++states_[operation].open_tasks;
    if (resource == Resource::kRounds) {
      arrivals_.emplace(now_ + length, operation);
      return;
    }
    states_[operation].remaining[static_cast<std::size_t>(resource)] = length;
    lanes_[lane_of(resource)].waiting.emplace(operation, resource);
  }

  // The earliest operation runs; it interrupts a later one.
  void dispatch(Lane& lane) {
    if (lane.waiting.empty()) return;
    const auto first = *lane.waiting.begin();
    if (lane.running) {
      if (lane.running->operation <= first.first) return;
      const Running interrupted = *lane.running;
      remaining(interrupted) -= now_ - interrupted.start;
      record(interrupted);
      lane.waiting.emplace(interrupted.operation, interrupted.resource);
    }
    lane.waiting.erase(first);
    lane.running = Running{first.first, first.second, now_};
  }

  Nanoseconds& remaining(const Running& task) {
    return states_[task.operation].remaining[static_cast<std::size_t>(task.resource)];
  }

  void record(const Running& task) {
    if (now_ == task.start) return;
    result_.segments.push_back({task.operation, task.resource, task.start, now_});
    result_.busy[static_cast<std::size_t>(task.resource)] += now_ - task.start;
  }

  Nanoseconds next_event() {
    Nanoseconds next = arrivals_.empty() ? kNever : arrivals_.top().first;
    for (const Lane& lane : lanes_)
      if (lane.running) next = std::min(next, lane.running->start + remaining(*lane.running));
    return next;
  }

  void finish_tasks() {
    for (Lane& lane : lanes_) {
      if (!lane.running || lane.running->start + remaining(*lane.running) != now_) continue;
      const Running task = *lane.running;
      lane.running.reset();
      record(task);
      close_task(task.operation, task.resource);
    }
    while (!arrivals_.empty() && arrivals_.top().first == now_) {
      const std::size_t operation = arrivals_.top().second;
      arrivals_.pop();
      record({operation, Resource::kRounds, now_ - steps_[operation].time.rounds});
      close_task(operation, Resource::kRounds);
    }
  }

  void close_task(std::size_t operation, Resource resource) {
    State& state = states_[operation];
    if (--state.open_tasks > 0) return;
    explain(operation, resource);
    ++state.stage;
    enter_stage(operation);
  }

  // `last` ended the stage: it took the operation's time.
  void explain(std::size_t operation, Resource last) {
    ScheduledOperation& entry = result_.operations[operation];
    const OperationTime& time = steps_[operation].time;
    if (last == Resource::kRounds) {
      entry.rounds = time.rounds;
      return;
    }
    const bool computed = last == Resource::kClientCompute || last == Resource::kServerCompute;
    if (options_.overlap) {
      const bool one_channel = !computed && !options_.full_duplex;
      const Nanoseconds spent = one_channel ? time.transfer_alone(false) : duration(time, last);
      (computed ? entry.compute : entry.transfer) = spent;
      entry.waiting = now_ - entry.start - spent;
      entry.bound = last;
    } else if (computed) {
      entry.compute = time.compute_alone();
      entry.bound = last;
    } else {
      entry.transfer = time.transfer_alone(options_.full_duplex);
      if (entry.transfer >= entry.compute) entry.bound = last;
    }
  }

  const std::vector<Step>& steps_;
  const ScheduleOptions options_;
  const std::vector<Tasks>& stages_;
  std::vector<State> states_;
  std::vector<std::size_t> ready_;
  std::array<Lane, kNumLanes> lanes_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  Nanoseconds now_ = 0;
  Schedule result_;
};

// Back from the operation that finishes last, each time to the input that finished last.
std::vector<std::size_t> critical_path(const std::vector<Step>& steps, const Schedule& schedule,
                                       bool overlap) {
  const auto finishes_earlier = [&](std::size_t a, std::size_t b) {
    return schedule.operations[a].finish < schedule.operations[b].finish;
  };
  std::vector<std::size_t> path;
  if (steps.empty()) return path;
  std::size_t last = 0;
  for (std::size_t i = 1; i < steps.size(); ++i)
    if (!finishes_earlier(i, last)) last = i;
  path.push_back(last);
  while (true) {
    const std::size_t current = path.back();
    const std::vector<std::size_t>& inputs = steps[current].inputs;
    if (!overlap && current > 0)
      path.push_back(current - 1);
    else if (overlap && !inputs.empty())
      path.push_back(*std::max_element(inputs.begin(), inputs.end(), finishes_earlier));
    else
      break;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace

Schedule schedule(const std::vector<Step>& steps, const ScheduleOptions& options) {
  Nanoseconds longest = 0;  // checks that no time below overflows
  for (const Step& step : steps) longest = added(longest, step.time.alone(false));
  Schedule result = Simulation(steps, options).run();
  for (ScheduledOperation& operation : result.operations)
    if (operation.rounds > std::max(operation.compute, operation.transfer))
      operation.bound = Resource::kRounds;
  result.critical_path = critical_path(steps, result, options.overlap);
  return result;
}

std::vector<Step> sped_up(std::vector<Step> steps, const std::vector<double>& times_faster) {
  if (times_faster.size() != steps.size())
    throw std::invalid_argument("schedule: times_faster must have one number per operation, " +
                                std::to_string(steps.size()) + ", got " +
                                std::to_string(times_faster.size()));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double factor = times_faster[i];
    if (!(factor >= 1e-3))
      throw std::invalid_argument(
          "schedule: times_faster must be numbers from 0.001 to infinity, got " +
          std::to_string(factor));
    if (factor == 1) continue;
    const auto faster = [&](Nanoseconds& time) {
      time = static_cast<Nanoseconds>(std::nearbyint(static_cast<double>(time) / factor));
    };
    OperationTime& time = steps[i].time;
    std::for_each(time.compute.begin(), time.compute.end(), faster);
    std::for_each(time.transfer.begin(), time.transfer.end(), faster);
    faster(time.rounds);
  }
  return steps;
}

}  // namespace aero::mpc
