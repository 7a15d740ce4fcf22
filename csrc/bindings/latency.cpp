// Times and schedules for Python, from the operations of a report.

#include "csrc/mpc/latency.h"

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/cost_values.h"
#include "csrc/mpc/profiles.h"
#include "csrc/mpc/schedule.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using mpc::Nanoseconds;
using Inputs = std::vector<std::vector<std::size_t>>;

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

using Operations = std::vector<const PricedOperation*>;

std::vector<mpc::OperationTime> operation_times(const Operations& operations,
                                                const spec::FieldValues& network_values,
                                                const spec::FieldValues& compute_values) {
  const mpc::NetworkProfile network = mpc::with_fields(mpc::NetworkProfile{}, network_values);
  const mpc::ComputeProfile compute = mpc::with_fields(mpc::ComputeProfile{}, compute_values);
  std::vector<mpc::OperationTime> times;
  times.reserve(operations.size());
  for (const PricedOperation* one : operations) {
    const mpc::Placement placement{one->evaluator, one->token_by_token, one->shares_alone,
                                   one->ring_products};
    times.push_back(mpc::operation_time(one->cost, placement, network, compute));
  }
  return times;
}

// Computing, sending and rounds of all operations, one after the other.
std::array<Nanoseconds, 3> total_time(const Operations& operations,
                                      const spec::FieldValues& network_values,
                                      const spec::FieldValues& compute_values, bool full_duplex) {
  std::array<Nanoseconds, 3> total{};
  for (const mpc::OperationTime& one : operation_times(operations, network_values, compute_values))
    total = {mpc::added(total[0], one.compute_alone()),
             mpc::added(total[1], one.transfer_alone(full_duplex)),
             mpc::added(total[2], one.rounds)};
  return total;
}

std::vector<mpc::Step> steps_of(const std::vector<mpc::OperationTime>& times,
                                const Inputs& inputs) {
  std::vector<mpc::Step> steps;
  steps.reserve(times.size());
  for (std::size_t i = 0; i < times.size(); ++i) steps.push_back({times[i], inputs.at(i)});
  return steps;
}

std::string_view name_of(mpc::Resource resource) {
  return kResourceNames[static_cast<std::size_t>(resource)];
}

py::dict busy(const mpc::Schedule& schedule) {
  py::dict found;
  for (std::size_t i = 0; i < mpc::kNumResources; ++i)
    found[py::str(kResourceNames[i])] = schedule.busy[i];
  return found;
}

mpc::Schedule schedule(const std::vector<mpc::OperationTime>& times, const Inputs& inputs,
                       bool overlap, bool full_duplex) {
  return mpc::schedule(steps_of(times, inputs), {overlap, full_duplex});
}

Nanoseconds makespan(const std::vector<mpc::OperationTime>& times, const Inputs& inputs,
                     bool overlap, bool full_duplex, const std::vector<double>& times_faster) {
  const std::vector<mpc::Step> steps = mpc::sped_up(steps_of(times, inputs), times_faster);
  return mpc::schedule(steps, {overlap, full_duplex}).makespan;
}

// All of them in nanoseconds.
void bind_times(py::module_& module) {
  using mpc::OperationTime, mpc::Schedule, mpc::ScheduledOperation, mpc::Segment;
  py::class_<OperationTime> time(module, "OperationTime",
                                 "The demand of an operation on every resource.");
  time.def_readonly("compute", &OperationTime::compute, "The computing of client and server.")
      .def_readonly("transfer", &OperationTime::transfer, "Client to server, server to client.")
      .def_readonly("rounds", &OperationTime::rounds, "Waiting for messages to arrive.")
      .def_property_readonly("compute_alone", &OperationTime::compute_alone,
                             "The slower party's computing.")
      .def("transfer_alone", &OperationTime::transfer_alone, py::arg("full_duplex"),
           "Sending; a full-duplex link sends both ways at once.")
      .def(py::self == py::self);
  allow_copies<&OperationTime::compute, &OperationTime::transfer, &OperationTime::rounds>(time);
  py::class_<ScheduledOperation>(module, "ScheduledOperation", "When an operation runs.")
      .def_readonly("start", &ScheduledOperation::start)
      .def_readonly("finish", &ScheduledOperation::finish)
      .def_readonly("compute", &ScheduledOperation::compute)
      .def_readonly("transfer", &ScheduledOperation::transfer)
      .def_readonly("rounds", &ScheduledOperation::rounds)
      .def_readonly("waiting", &ScheduledOperation::waiting)
      .def_property_readonly("bound",
                             [](const ScheduledOperation& self) { return name_of(self.bound); });
  py::class_<Segment> segment(module, "Segment",
                              "An operation that uses a resource without a break.");
  segment.def_readonly("operation", &Segment::operation, "Its index.")
      .def_property_readonly("resource", [](const Segment& self) { return name_of(self.resource); })
      .def_readonly("start", &Segment::start)
      .def_readonly("finish", &Segment::finish)
      .def(py::self == py::self);
  allow_copies<&Segment::operation, &Segment::resource, &Segment::start, &Segment::finish>(segment);
  py::class_<Schedule>(module, "Schedule", "A schedule of all operations.")
      .def_readonly("makespan", &Schedule::makespan)
      .def_readonly("operations", &Schedule::operations)
      .def_readonly("critical_path", &Schedule::critical_path)
      .def_property_readonly("busy", &busy, "Per resource.")
      .def_readonly("segments", &Schedule::segments);
}

}  // namespace

void bind_latency(py::module_& module) {
  bind_times(module);
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
  module.def("total_time", &total_time, py::arg("operations"), py::arg("network"),
             py::arg("compute"), py::arg("full_duplex"),
             "Nanoseconds of computing, sending and rounds, one operation after the other.");
  module.def("schedule", &schedule, py::arg("times"), py::arg("inputs"), py::arg("overlap"),
             py::arg("full_duplex"), "See aero.mpc.Latency.schedule.");
  module.def("makespan", &makespan, py::arg("times"), py::arg("inputs"), py::arg("overlap"),
             py::arg("full_duplex"), py::arg("times_faster"),
             "The seconds of the schedule with operation i times_faster[i] times as fast.");
}

}  // namespace aero::bindings
