// The cost model for Python as plain values; the modules of aero.mpc give them names.

#include <pybind11/stl.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/cost_values.h"
#include "csrc/mpc/cost_report.h"
#include "csrc/mpc/generation.h"
#include "csrc/mpc/latency.h"
#include "csrc/mpc/operation_cost.h"
#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/oblivious_transfer.h"
#include "csrc/spec/nearest_word.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using mpc::Cost;
using mpc::Stack;
using Sizes = std::vector<std::int64_t>;

py::dict fields_dict(const Stack& stack) {
  py::dict fields;
  for (const auto& [name, value] : mpc::field_values(stack)) fields[py::str(name)] = value;
  return fields;
}

std::string_view evaluator_name(mpc::Evaluator evaluator) {
  if (evaluator == mpc::Evaluator::kBoth) return "both";
  return evaluator == mpc::Evaluator::kClient ? "client" : "server";
}

py::list operation_list(const mpc::CostReport& report, const Stack& stack) {
  py::list operations;
  for (std::size_t i = 0; i < report.operations.size(); ++i) {
    const mpc::Operation& operation = report.operations[i];
    const py::object layer = operation.layer == mpc::kOutsideLayers
                                 ? py::object(py::none())
                                 : py::object(py::int_(operation.layer));
    const mpc::Placement placement = mpc::placement(stack, operation.shape);
    operations.append(py::make_tuple(
        operation.name, layer, mpc::part_name(operation.part), mpc::shape_text(operation.shape),
        py::tuple(py::cast(operation.inputs)), cost_tuple(report.operation_costs[i]),
        evaluator_name(placement.evaluator), placement.token_by_token));
  }
  return operations;
}

py::dict simulate_cost(const spec::ArchitectureSpec& spec, const std::string& stack_name,
                       const spec::FieldValues& fields, const PriceMap& prices,
                       const std::optional<TokenTuple>& token) {
  const Stack stack = stack_of(stack_name, fields, prices);
  const mpc::CostReport report =
      mpc::simulate(spec, stack, token ? pass_of(spec, *token) : mpc::whole_context(spec));
  py::dict by_kind;
  for (const auto& [part, cost] : report.by_part)
    by_kind[py::str(mpc::part_name(part))] = cost_tuple(cost);
  py::list by_layer;
  for (const Cost& cost : report.by_layer) by_layer.append(cost_tuple(cost));
  py::dict result;
  result["stack_fields"] = fields_dict(stack);
  result["operations"] = operation_list(report, stack);
  result["total"] = cost_tuple(report.total);
  result["by_kind"] = by_kind;
  result["by_layer"] = by_layer;
  result["outside_layers"] = cost_tuple(report.outside_layers);
  result["unchecked"] = report.unchecked;
  return result;
}

// Protocols by name: how many sizes each takes, and its cost.
struct Protocol {
  std::size_t num_sizes;
  Cost (*cost)(const Stack&, const Sizes&);
};

template <Cost (*function)(const Stack&, std::int64_t)>
Cost of_stack_and_elements(const Stack& stack, const Sizes& sizes) {
  return function(stack, sizes[0]);
}

template <Cost (*function)(const Stack&, std::int64_t, mpc::Ring)>
Cost in_ring_64(const Stack& stack, const Sizes& sizes) {
  return function(stack, sizes[0], mpc::Ring::kZ2k64);
}

mpc::MatmulShape matmul_shape(const Sizes& sizes) { return {sizes[0], sizes[1], sizes[2]}; }

// Operations of the graph that a stack's description can price.
template <mpc::OperationShape (*shape)(const Sizes&)>
Cost of_shape(const Stack& stack, const Sizes& sizes) {
  return mpc::operation_cost(stack, shape(sizes));
}

template <mpc::ActivationKind kind>
mpc::OperationShape activation(const Sizes& s) {
  return mpc::Activation{kind, s[0]};
}

mpc::OperationShape setup(const Sizes&) { return mpc::SessionSetup{}; }
mpc::OperationShape truncation(const Sizes& s) { return mpc::Truncation{s[0]}; }
mpc::OperationShape argmax(const Sizes& s) { return mpc::Argmax{s[0], 1}; }
mpc::OperationShape layernorm(const Sizes& s) { return mpc::LayerNorm{s[0], s[1]}; }
mpc::OperationShape embedding(const Sizes& s) { return mpc::EmbeddingShape{s[0], s[1], s[2]}; }
mpc::OperationShape weight_product(const Sizes& s) { return mpc::WeightProduct{matmul_shape(s)}; }
mpc::OperationShape head_product(const Sizes& s) {
  return mpc::HeadProduct{s[0], {s[1], s[2], s[3]}};
}
mpc::OperationShape softmax(const Sizes& s) {
  return mpc::SoftmaxShape{s[0], s[1], mpc::element_count({s[0], s[1]}, "softmax")};
}

const std::map<std::string, Protocol>& protocols() {
  static const std::map<std::string, Protocol> table = {
      {"product", {1, in_ring_64<mpc::product>}},
      {"square", {1, in_ring_64<mpc::square>}},
      {"private_product", {1, in_ring_64<mpc::private_product>}},
      {"comparison", {2, [](const Stack&, const Sizes& s) { return mpc::comparison(s[0], s[1]); }}},
      {"equality", {2, [](const Stack&, const Sizes& s) { return mpc::equality(s[0], s[1]); }}},
      {"multiplexer", {1, [](const Stack&, const Sizes& s) { return mpc::multiplexer(s[0]); }}},
      {"exp", {1, of_stack_and_elements<mpc::exponential>}},
      {"reciprocal", {1, of_stack_and_elements<mpc::reciprocal>}},
      {"reciprocal_square_root", {1, of_stack_and_elements<mpc::reciprocal_square_root>}},
      {"plaintext_product",
       {3, [](const Stack& stack,
              const Sizes& s) { return mpc::plaintext_product(stack, matmul_shape(s)); }}},
      {"matmul",
       {3,
        [](const Stack& stack, const Sizes& s) {
          return mpc::matmul(stack, matmul_shape(s), mpc::RightFactor::kShared);
        }}},
      {"setup", {0, of_shape<setup>}},
      {"truncation", {1, of_shape<truncation>}},
      {"relu", {1, of_shape<activation<mpc::ActivationKind::kRelu>>}},
      {"leaky_relu", {1, of_shape<activation<mpc::ActivationKind::kLeakyRelu>>}},
      {"gelu", {1, of_shape<activation<mpc::ActivationKind::kGelu>>}},
      {"argmax", {1, of_shape<argmax>}},
      {"softmax", {2, of_shape<softmax>}},
      {"layernorm", {2, of_shape<layernorm>}},
      {"embedding", {3, of_shape<embedding>}},
      {"weight_product", {3, of_shape<weight_product>}},
      {"head_product", {4, of_shape<head_product>}},
  };
  return table;
}

std::vector<std::string_view> protocol_names() {
  std::vector<std::string_view> names;
  for (const auto& [name, protocol] : protocols()) names.emplace_back(name);
  return names;
}

void check_sizes(const std::string& name, std::size_t expected, const Sizes& sizes) {
  constexpr std::int64_t kMaxSize = 1099511627776;  // 2^40
  if (sizes.size() != expected)
    throw std::invalid_argument("operation_cost: " + name + " takes " + std::to_string(expected) +
                                " size(s), got " + std::to_string(sizes.size()));
  for (const std::int64_t size : sizes)
    if (size < 1 || size > kMaxSize)
      throw std::invalid_argument("operation_cost: sizes of " + name +
                                  " must be integers from 1 to 2^40, got " + std::to_string(size));
}

py::tuple protocol_cost(const std::string& name, const Sizes& sizes, const std::string& stack_name,
                        const spec::FieldValues& fields, const PriceMap& prices) {
  const auto found = protocols().find(name);
  if (found == protocols().end())
    throw std::invalid_argument("operation_cost: name must be " +
                                spec::quoted_list(protocol_names()) + ", got " +
                                spec::quoted(name));
  check_sizes(name, found->second.num_sizes, sizes);
  return cost_tuple(found->second.cost(stack_of(stack_name, fields, prices), sizes));
}

py::tuple matmul_block(std::int64_t rows, std::int64_t inner, std::int64_t columns) {
  check_sizes("matmul_block", 3, {rows, inner, columns});
  const auto [d0, d1, d2] = mpc::plan_matmul({rows, inner, columns}).block;
  return py::make_tuple(d0, d1, d2);
}

}  // namespace

void bind_mpc(py::module_& module) {
  module.def("stack_names", &mpc::stack_names, "Named protocol stacks.");
  module.def("optimized_stack_names", &mpc::optimized_stack_names,
             "`spu-2024` with optimizations.");
  module.def(
      "stack_fields", [](const std::string& name) { return fields_dict(mpc::stack(name)); },
      py::arg("name"), "The fields of a named stack.");
  module.def(
      "stack_field_documents",
      [] {
        py::dict documents;
        for (const auto& [name, unit, meaning] : mpc::field_documents())
          documents[py::str(name)] = py::make_tuple(unit, meaning);
        return documents;
      },
      "Unit and meaning of every field of a stack.");
  module.def("simulate_cost", &simulate_cost, py::arg("spec"), py::arg("stack"), py::arg("fields"),
             py::arg("prices") = PriceMap{}, py::arg("token") = py::none(),
             "One private forward pass; see aero.mpc.simulate.");
  module.def("protocol_cost", &protocol_cost, py::arg("name"), py::arg("sizes"), py::arg("stack"),
             py::arg("fields"), py::arg("prices") = PriceMap{},
             "One operation; see aero.mpc.operation_cost.");
  module.def("matmul_block", &matmul_block, py::arg("rows"), py::arg("inner"), py::arg("columns"),
             "Rows, inner and columns of the polynomials that a matrix product is cut into.");
}

}  // namespace aero::bindings
