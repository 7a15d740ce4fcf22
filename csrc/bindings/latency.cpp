// Times and schedules for Python, from the operations of a report as plain values.

#include "csrc/mpc/latency.h"

#include <pybind11/stl.h>

#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/mpc/profiles.h"
#include "csrc/mpc/schedule.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using mpc::Nanoseconds;
// Client compute, server compute, client to server, server to client, rounds.
using TimeTuple = std::tuple<Nanoseconds, Nanoseconds, Nanoseconds, Nanoseconds, Nanoseconds>;
// As `cost_tuple` gives it.
using CostTuple = std::tuple<double, double, double, double, double, double, double, double>;
// Cost, name of the evaluator, token by token.
using Work = std::tuple<CostTuple, std::string, bool>;

constexpr std::array<std::string_view, mpc::kNumResources> kResourceNames{
    "client compute", "server compute", "client to server", "server to client", "rounds"};

py::dict fields_dict(const spec::FieldValues& values) {
  py::dict fields;
  for (const auto& [name, value] : values) fields[py::str(name)] = value;
  return fields;
}

py::dict network_fields(const std::string& name, const spec::FieldValues& fields) {
  return fields_dict(mpc::field_values(mpc::with_fields(mpc::network_profile(name), fields)));
}

py::dict compute_fields(const std::string& name, const spec::FieldValues& fields) {
  return fields_dict(mpc::field_values(mpc::with_fields(mpc::compute_profile(name), fields)));
}

mpc::Cost cost_of(const CostTuple& tuple) {
  mpc::Cost cost;
  std::tie(cost.sent_bytes[mpc::kClient], cost.sent_bytes[mpc::kServer], cost.rounds,
           cost.elementwise_ciphertexts, cost.ct_pt_products, cost.plaintext_encodings,
           cost.automorphisms, cost.ots) = tuple;
  return cost;
}

mpc::Evaluator evaluator_of(const std::string& name) {
  if (name == "client") return mpc::Evaluator::kClient;
  return name == "server" ? mpc::Evaluator::kServer : mpc::Evaluator::kBoth;
}

std::vector<TimeTuple> operation_times(const std::vector<Work>& operations,
                                       const spec::FieldValues& network_values,
                                       const spec::FieldValues& compute_values) {
  const mpc::NetworkProfile network = mpc::with_fields(mpc::NetworkProfile{}, network_values);
  const mpc::ComputeProfile compute = mpc::with_fields(mpc::ComputeProfile{}, compute_values);
  std::vector<TimeTuple> times;
  times.reserve(operations.size());
  for (const auto& [cost, evaluator, token_by_token] : operations) {
    const mpc::OperationTime time = mpc::operation_time(
        cost_of(cost), {evaluator_of(evaluator), token_by_token}, network, compute);
    times.emplace_back(time.compute[0], time.compute[1], time.transfer[0], time.transfer[1],
                       time.rounds);
  }
  return times;
}

std::vector<mpc::Step> steps_of(const std::vector<TimeTuple>& times,
                                const std::vector<std::vector<std::size_t>>& inputs) {
  std::vector<mpc::Step> steps(times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    mpc::OperationTime& time = steps[i].time;
    std::tie(time.compute[0], time.compute[1], time.transfer[0], time.transfer[1], time.rounds) =
        times[i];
    steps[i].inputs = inputs.at(i);
  }
  return steps;
}

std::string_view name_of(mpc::Resource resource) {
  return kResourceNames[static_cast<std::size_t>(resource)];
}

py::dict schedule(const std::vector<TimeTuple>& times,
                  const std::vector<std::vector<std::size_t>>& inputs, bool overlap,
                  bool full_duplex) {
  const mpc::Schedule result = mpc::schedule(steps_of(times, inputs), {overlap, full_duplex});
  py::list operations;
  for (const mpc::ScheduledOperation& one : result.operations)
    operations.append(py::make_tuple(one.start, one.finish, one.compute, one.transfer, one.rounds,
                                     one.waiting, name_of(one.bound)));
  py::list segments;
  for (const mpc::Segment& segment : result.segments)
    segments.append(py::make_tuple(segment.operation, name_of(segment.resource), segment.start,
                                   segment.finish));
  py::dict busy;
  for (std::size_t i = 0; i < mpc::kNumResources; ++i)
    busy[py::str(kResourceNames[i])] = result.busy[i];
  py::dict found;
  found["makespan"] = result.makespan;
  found["operations"] = operations;
  found["critical_path"] = result.critical_path;
  found["busy"] = busy;
  found["segments"] = segments;
  return found;
}

Nanoseconds makespan(const std::vector<TimeTuple>& times,
                     const std::vector<std::vector<std::size_t>>& inputs, bool overlap,
                     bool full_duplex, const std::vector<double>& times_faster) {
  const std::vector<mpc::Step> steps = mpc::sped_up(steps_of(times, inputs), times_faster);
  return mpc::schedule(steps, {overlap, full_duplex}).makespan;
}

}  // namespace

void bind_latency(py::module_& module) {
  module.def("network_names", &mpc::network_names, "Named networks.");
  module.def("compute_names", &mpc::compute_names, "Named compute profiles.");
  module.def("network_fields", &network_fields, py::arg("name"), py::arg("fields"),
             "The fields of a named network with some changed, checked.");
  module.def("compute_fields", &compute_fields, py::arg("name"), py::arg("fields"),
             "The fields of a named compute profile with some changed, checked.");
  module.def("network_source", &mpc::network_source, py::arg("name"),
             "Where a named network's numbers come from.");
  module.def("compute_source", &mpc::compute_source, py::arg("name"),
             "Where a named compute profile's numbers come from.");
  module.def("operation_times", &operation_times, py::arg("operations"), py::arg("network"),
             py::arg("compute"), "Nanoseconds of every operation on every resource.");
  module.def("schedule", &schedule, py::arg("times"), py::arg("inputs"), py::arg("overlap"),
             py::arg("full_duplex"), "See aero.mpc.Latency.schedule.");
  module.def("makespan", &makespan, py::arg("times"), py::arg("inputs"), py::arg("overlap"),
             py::arg("full_duplex"), py::arg("times_faster"),
             "Of the schedule with operation i times_faster[i] times as fast.");
}

}  // namespace aero::bindings
