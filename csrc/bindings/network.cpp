// Descriptions of networks for Python: as plain dictionaries, as files hold them.

#include "csrc/network/network.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "csrc/bindings/bindings.h"
#include "csrc/network/label_network.h"
#include "csrc/spec/nearest_word.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using network::Network;

template <class Words>
std::size_t place_of(std::string_view word, const Words& words, const std::string& what) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end())
    throw std::invalid_argument("network: " + what + " must be " + spec::quoted_list(words) +
                                ", got " + spec::quoted(word));
  return static_cast<std::size_t>(found - words.begin());
}

template <class Member>
Member cast(const py::dict& from, std::string_view name) {
  const py::str key{std::string(name)};
  if (!from.contains(key))
    throw std::invalid_argument("network: expected a field " + spec::quoted(name) + " of " +
                                py::repr(from).cast<std::string>().substr(0, 80) + ", got none");
  try {
    return from[key].cast<Member>();
  } catch (const py::cast_error&) {
    throw std::invalid_argument("network: " + std::string(name) + " has the wrong type, got " +
                                py::repr(from[key]).cast<std::string>().substr(0, 80));
  }
}

struct Writing {
  py::dict& into;

  template <class Member>
  void operator()(const char* name, const Member& member) const {
    into[name] = member;
  }
  template <class Member, class Words>
  void operator()(const char* name, const Member& member, const Words& words) const {
    into[name] = words[static_cast<std::size_t>(member)];
  }
};

struct Reading {
  const py::dict& from;

  template <class Member>
  void operator()(const char* name, Member& member) const {
    if constexpr (std::is_same_v<Member, double>) {
      if (from.contains(name) && py::isinstance<py::list>(from[name])) {
        cast<std::vector<double>>(from, name);
        return;
      }
    }
    member = cast<Member>(from, name);
  }
  template <class Member, class Words>
  void operator()(const char* name, Member& member, const Words& words) const {
    member = static_cast<Member>(place_of(cast<std::string>(from, name), words, name));
  }
};

py::dict operation_dict(const Network& network, network::Operation operation) {
  py::dict found;
  found["op"] = network::kPrimitiveNames[operation.primitive.index()];
  if (!operation.name.empty()) found["name"] = operation.name;
  if (!operation.part.empty()) found["part"] = operation.part;
  py::list inputs;
  for (const network::Value input : operation.inputs) inputs.append(network.values[input]);
  found["inputs"] = inputs;
  found["output"] = network.values[operation.output];
  std::visit([&](auto& primitive) { primitive.fields(Writing{found}); }, operation.primitive);
  py::dict weights;
  for (const auto& [role, tensor] : operation.weights) weights[py::str(role)] = tensor;
  if (!operation.weights.empty()) found["weights"] = weights;
  return found;
}

py::list operations_list(const Network& network) {
  py::list found;
  for (const network::Segment& segment : network.segments) {
    py::list operations;
    for (const network::Operation& operation : segment.operations)
      operations.append(operation_dict(network, operation));
    if (segment.layers == 0) {
      for (const py::handle operation : operations) found.append(operation);
      continue;
    }
    py::dict repeated;
    repeated["repeat"] = segment.layers;
    repeated["operations"] = operations;
    found.append(repeated);
  }
  return found;
}

network::Value value_of(Network& network, const std::string& name) {
  const auto found = std::find(network.values.begin(), network.values.end(), name);
  if (found != network.values.end())
    return static_cast<network::Value>(found - network.values.begin());
  network.values.push_back(name);
  return network.values.size() - 1;
}

template <std::size_t... indices>
network::Primitive primitive_at(std::size_t index, std::index_sequence<indices...>) {
  network::Primitive found;
  ((index == indices ? void(found.emplace<indices>()) : void()), ...);
  return found;
}

network::Operation operation_from(Network& network, const py::dict& from) {
  constexpr std::size_t kCount = std::variant_size_v<network::Primitive>;
  const std::size_t index = place_of(cast<std::string>(from, "op"), network::kPrimitiveNames, "op");
  network::Operation operation;
  operation.primitive = primitive_at(index, std::make_index_sequence<kCount>());
  std::visit([&](auto& primitive) { primitive.fields(Reading{from}); }, operation.primitive);
  if (from.contains("name")) operation.name = cast<std::string>(from, "name");
  if (from.contains("part")) operation.part = cast<std::string>(from, "part");
  for (const std::string& name : cast<std::vector<std::string>>(from, "inputs"))
    operation.inputs.push_back(value_of(network, name));
  operation.output = value_of(network, cast<std::string>(from, "output"));
  if (from.contains("weights"))
    for (const auto& [role, tensor] : cast<std::map<std::string, std::string>>(from, "weights"))
      operation.weights.emplace_back(role, tensor);
  return operation;
}

Network network_from(const py::list& operations, std::int64_t context_length) {
  Network network;
  network.context_length = context_length;
  const auto plain_segment = [&]() -> network::Segment& {
    if (network.segments.empty() || network.segments.back().layers != 0)
      network.segments.push_back({});
    return network.segments.back();
  };
  for (const py::handle each : operations) {
    const auto entry = each.cast<py::dict>();
    if (!entry.contains("repeat")) {
      plain_segment().operations.push_back(operation_from(network, entry));
      continue;
    }
    network::Segment segment{cast<std::int64_t>(entry, "repeat"), {}};
    if (segment.layers < 1)
      throw std::invalid_argument("network: repeat must be an integer from 1, got " +
                                  std::to_string(segment.layers));
    for (const py::handle inner : cast<py::list>(entry, "operations"))
      segment.operations.push_back(operation_from(network, inner.cast<py::dict>()));
    network.segments.push_back(std::move(segment));
  }
  network::validate(network);
  network.result = network.segments.back().operations.back().output;
  return network;
}

}  // namespace

void bind_network(py::module_& module) {
  py::class_<Network>(module, "Network", "A description of a network, checked.")
      .def(py::init(&network_from), py::arg("operations"), py::arg("context_length"))
      .def_readonly("context_length", &Network::context_length, "T, in tokens.")
      .def_property_readonly("operations", &operations_list,
                             "Operations and repeated ones, as a file has them.");
  module.def(
      "describe",
      [](const spec::ArchitectureSpec& spec, double embedding_scale, double epsilon,
         double rotary_base, bool exact_gelu) {
        return network::describe(spec, {embedding_scale, epsilon, rotary_base, exact_gelu});
      },
      py::arg("spec"), py::kw_only(), py::arg("embedding_scale") = 1.0, py::arg("epsilon") = 1e-5,
      py::arg("rotary_base") = 10000.0, py::arg("exact_gelu") = false,
      "The network of a spec; no price depends on the keywords.");
}

}  // namespace aero::bindings
