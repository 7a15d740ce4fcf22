// Costs of networks and of single operations for Python; the values are those of aero.mpc.

#include <pybind11/operators.h>
#include <pybind11/stl.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "csrc/bindings/bindings.h"
#include "csrc/bindings/cost_values.h"
#include "csrc/mpc/cost_report.h"
#include "csrc/mpc/latency.h"
#include "csrc/mpc/operation_cost.h"
#include "csrc/mpc/protocols/elementwise_product.h"
#include "csrc/mpc/protocols/primitives.h"
#include "csrc/spec/nearest_word.h"

namespace py = pybind11;

namespace aero::bindings {
namespace {

using mpc::Cost;
using mpc::Stack;
using Sizes = std::vector<std::int64_t>;

std::string_view evaluator_name(const PricedOperation& self) {
  if (self.evaluator == mpc::Evaluator::kBoth) return "both";
  return self.evaluator == mpc::Evaluator::kClient ? "client" : "server";
}

void bind_operation(py::module_& module) {
  using Inputs = std::vector<std::size_t>;
  py::class_<PricedOperation> bound(module, "Operation", "One operation on secret values.");
  bound
      .def(py::init([](std::string name, std::optional<std::int64_t> layer, std::string kind,
                       std::string shape, Inputs inputs, const Cost& cost) {
             return PricedOperation{.name = std::move(name),
                                    .layer = layer,
                                    .kind = std::move(kind),
                                    .shape = std::move(shape),
                                    .inputs = std::move(inputs),
                                    .cost = cost};
           }),
           py::kw_only(), py::arg("name"), py::arg("layer"), py::arg("kind"), py::arg("shape"),
           py::arg("inputs"), py::arg("cost"))
      .def_readonly("name", &PricedOperation::name,
                    "Its result, such as \"queries, keys, values\".")
      .def_readonly("layer", &PricedOperation::layer,
                    "Layer from 0, or None for set-up, embedding, final norm, head and argmax.")
      .def_readonly("kind", &PricedOperation::kind, "A key of `CostReport.by_kind`.")
      .def_readonly("shape", &PricedOperation::shape,
                    "Sizes as text: \"128x768x2304\"; \"12 x 128x64x128\" for twelve heads.")
      .def_property_readonly(
          "inputs", [](const PricedOperation& self) { return py::tuple(py::cast(self.inputs)); },
          "Indices of the operations that must be finished first.")
      .def_readonly("cost", &PricedOperation::cost, "Its cost; bytes are whole.")
      .def_property_readonly(
          "evaluator", &evaluator_name,
          "Who evaluates its ciphertexts: \"client\", \"server\", or \"both\", half each.")
      .def_readonly("token_by_token", &PricedOperation::token_by_token,
                    "True if its matrix products take one row after the other.")
      .def(py::self == py::self)
      .def("__repr__", [](const PricedOperation& self) {
        return "<Operation " + self.name + ": " + self.shape + ">";
      });
  allow_copies<&PricedOperation::name, &PricedOperation::layer, &PricedOperation::kind,
               &PricedOperation::shape, &PricedOperation::inputs, &PricedOperation::cost,
               &PricedOperation::evaluator, &PricedOperation::token_by_token,
               &PricedOperation::shares_alone, &PricedOperation::ring_products>(bound);
}

std::vector<PricedOperation> operations_of(const mpc::CostReport& report, const Stack& stack) {
  std::vector<PricedOperation> operations;
  operations.reserve(report.operations.size());
  for (std::size_t i = 0; i < report.operations.size(); ++i) {
    const mpc::Operation& one = report.operations[i];
    const bool outside = one.layer == mpc::kOutsideLayers;
    const mpc::Placement placement = mpc::placement(stack, one.shape);
    operations.push_back(
        {std::string(one.name), outside ? std::nullopt : std::optional<std::int64_t>(one.layer),
         std::string(mpc::kind_name(one.kind)), mpc::shape_text(one.shape), one.inputs,
         report.operation_costs[i], placement.evaluator, placement.token_by_token,
         placement.shares_alone, placement.ring_products});
  }
  return operations;
}

// Part -> the lines of a program that its price is of, where others would cost something else.
py::dict lowerings_of(const mpc::CostReport& report, const Stack& stack) {
  std::map<std::string, std::set<std::string>> texts;
  for (const mpc::Operation& one : report.operations)
    if (const std::string text = mpc::lowering_text(stack, one); !text.empty())
      texts[std::string(mpc::kind_name(one.kind))].insert(text);
  py::dict found;
  for (const auto& [kind, each] : texts) found[py::str(kind)] = py::tuple(py::cast(each));
  return found;
}

py::dict report_values(const mpc::CostReport& report, const Stack& stack) {
  py::dict values;
  values["operations"] = py::tuple(py::cast(operations_of(report, stack)));
  values["total"] = report.total;
  values["base_bytes"] = report.base_bytes;
  values["by_kind"] = by_kind_dict(report.by_kind);
  values["by_layer"] = py::tuple(py::cast(report.by_layer));
  values["outside_layers"] = report.outside_layers;
  values["unchecked"] = py::tuple(py::cast(report.unchecked));
  values["lowerings"] = lowerings_of(report, stack);
  return values;
}

py::dict simulate(const network::Network& network, const Stack& stack) {
  return report_values(mpc::simulate(network, stack, mpc::whole_context(network)), stack);
}

// The session's set-up is done in a pass without earlier tokens.
py::dict simulate_pass(const network::Network& network, const Stack& stack, std::int64_t batch,
                       std::int64_t queries, std::int64_t keys,
                       const std::optional<std::string>& sampling) {
  const mpc::Pass pass{
      .batch = batch,
      .queries = queries,
      .keys = keys,
      .next_token = sampling ? next_token_of(*sampling) : mpc::NextToken::kAsStack,
      .first = queries == keys,
  };
  return report_values(mpc::simulate(network, stack, pass), stack);
}

// The operations of `operation_cost` by name: how many sizes, and the cost.
struct SizedCost {
  std::size_t num_sizes;
  std::function<Cost(const Stack&, const Sizes&)> cost;
};

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

mpc::OperationShape setup(const Sizes&) { return mpc::SessionSetup{}; }
mpc::OperationShape truncation(const Sizes& s) { return mpc::Truncation{s[0]}; }
mpc::OperationShape elementwise_product(const Sizes& s) { return mpc::SharedProduct{s[0]}; }
mpc::OperationShape weight_scaling(const Sizes& s) { return mpc::WeightScaling{s[0]}; }
mpc::OperationShape argmax(const Sizes& s) { return mpc::Argmax{s[0], 1}; }
mpc::OperationShape top_k(const Sizes& s) { return mpc::TopKShape{s[0], s[1], s[2]}; }
mpc::OperationShape embedding(const Sizes& s) { return mpc::EmbeddingShape{s[0], s[1], s[2]}; }
mpc::OperationShape weight_product(const Sizes& s) { return mpc::WeightProduct{matmul_shape(s)}; }
mpc::OperationShape head_product(const Sizes& s) {
  return mpc::HeadProduct{s[0], {s[1], s[2], s[3]}};
}
mpc::OperationShape softmax(const Sizes& s) {
  return mpc::SoftmaxShape{s[0], s[1], mpc::element_count({s[0], s[1]}, "softmax")};
}

std::map<std::string, SizedCost> all_operations() {
  std::map<std::string, SizedCost> table = {
      {"product", {1, in_ring_64<mpc::product>}},
      {"square", {1, in_ring_64<mpc::square>}},
      {"private_product", {1, in_ring_64<mpc::private_product>}},
      {"comparison",
       {2, [](const Stack& one, const Sizes& s) { return mpc::comparison(one, s[0], s[1]); }}},
      {"equality",
       {2, [](const Stack& one, const Sizes& s) { return mpc::equality(one, s[0], s[1]); }}},
      {"multiplexer",
       {1, [](const Stack& one, const Sizes& s) { return mpc::multiplexer(one, s[0]); }}},
      {"plaintext_product",
       {3,
        [](const Stack& stack, const Sizes& s) {
          if (stack.protocol != mpc::Protocol::kCheetah)
            throw std::invalid_argument(
                "operation_cost: plaintext_product must be on a stack of Cheetah, which multiplies "
                "what each party knows without sharing it; take matmul");
          return mpc::plaintext_product(stack, matmul_shape(s));
        }}},
      {"matmul",
       {3,
        [](const Stack& stack, const Sizes& s) {
          return mpc::matmul(stack, matmul_shape(s), mpc::RightFactor::kShared);
        }}},
      {"setup", {0, of_shape<setup>}},
      {"truncation", {1, of_shape<truncation>}},
      {"elementwise_product", {1, of_shape<elementwise_product>}},
      {"weight_scaling", {1, of_shape<weight_scaling>}},
      {"rotary",
       {1,
        [](const Stack& one, const Sizes& s) {  // times cos, and times sin
          const Cost truncated = of_shape<truncation>(one, s);
          return truncated + truncated;
        }}},
      {"argmax", {1, of_shape<argmax>}},
      {"softmax", {2, of_shape<softmax>}},
      {"embedding", {3, of_shape<embedding>}},
      {"top_k", {3, of_shape<top_k>}},
      {"weight_product", {3, of_shape<weight_product>}},
      {"head_product", {4, of_shape<head_product>}},
  };
  for (const mpc::PricedFunction& function : mpc::priced_functions())
    table[std::string(function.name)] = {
        function.of_rows ? 2U : 1U, [&function](const Stack& stack, const Sizes& s) {
          return mpc::operation_cost(stack,
                                     mpc::FunctionShape{&function, s[0], s.size() > 1 ? s[1] : 1});
        }};
  return table;
}

const std::map<std::string, SizedCost>& priced_operations() {
  static const std::map<std::string, SizedCost> table = all_operations();
  return table;
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> found;
  for (const auto& [name, sized] : priced_operations()) found.emplace_back(name);
  return found;
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

Cost operation_cost(const std::string& name, const Sizes& sizes, const Stack& stack) {
  const auto found = priced_operations().find(name);
  if (found == priced_operations().end())
    throw std::invalid_argument("operation_cost: name must be " + spec::quoted_list(names()) +
                                ", got " + spec::quoted(name));
  check_sizes(name, found->second.num_sizes, sizes);
  return found->second.cost(stack, sizes);
}

py::tuple matmul_block(std::int64_t rows, std::int64_t inner, std::int64_t columns) {
  check_sizes("matmul_block", 3, {rows, inner, columns});
  const auto [d0, d1, d2] = mpc::plan_matmul({rows, inner, columns}).block;
  return py::make_tuple(d0, d1, d2);
}

}  // namespace

void bind_mpc(py::module_& module) {
  bind_operation(module);
  module.def("stack_names", &mpc::stack_names, "Named protocol stacks.");
  module.def("optimized_stack_names", &mpc::optimized_stack_names,
             "`spu-2024` with optimizations.");
  module.def(
      "stack_field_documents",
      [] {
        py::dict documents;
        for (const auto& [name, unit, meaning] : mpc::field_documents())
          documents[py::str(name)] = py::make_tuple(unit, meaning);
        return documents;
      },
      "Unit and meaning of every field of a stack.");
  module.def("simulate", &simulate, py::arg("network"), py::arg("stack"),
             "One private forward pass; see aero.mpc.simulate.");
  module.def("simulate_pass", &simulate_pass, py::arg("network"), py::arg("stack"), py::kw_only(),
             py::arg("batch"), py::arg("queries"), py::arg("keys"),
             py::arg("sampling") = py::none(),
             "One pass over new tokens that see all; see aero.mpc.simulate_generation.");
  module.def("operation_cost", &operation_cost, py::arg("name"), py::arg("sizes"), py::arg("stack"),
             "One operation; see aero.mpc.operation_cost.");
  module.def("matmul_block", &matmul_block, py::arg("rows"), py::arg("inner"), py::arg("columns"),
             "Rows, inner and columns of the polynomials that a matrix product is cut into.");
}

}  // namespace aero::bindings
