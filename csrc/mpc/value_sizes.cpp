#include "csrc/mpc/value_sizes.h"

#include <variant>

namespace aero::mpc {
namespace {

template <class Primitive>
const Primitive* as(const network::Operation& operation) {
  return std::get_if<Primitive>(&operation.primitive);
}

bool keeps_columns(const network::Operation& operation) {
  return std::visit([]<class One>(const One&) { return requires { One::kKeepsColumns; }; },
                    operation.primitive);
}

}  // namespace

std::int64_t ValueSizes::columns(const network::Operation& operation) const {
  const bool attends = as<network::Scores>(operation) || as<network::WeightedSum>(operation);
  const Size& read = sizes_[operation.inputs[attends ? 1 : 0]];
  const std::int64_t own = attends ? read.rows : read.columns;
  return own > 0 ? own : keys_;
}

void ValueSizes::write(const network::Operation& operation) {
  Size size;
  if (!operation.inputs.empty()) {
    size.rows = sizes_[operation.inputs[0]].rows;
    if (keeps_columns(operation)) size.columns = sizes_[operation.inputs[0]].columns;
  }
  if (const auto* product = as<network::Linear>(operation)) size.columns = product->out;
  if (const auto* split = as<network::SplitHeads>(operation)) size.heads = split->heads;
  if (as<network::Rotate>(operation) || as<network::Norm>(operation))
    size.heads = sizes_[operation.inputs[0]].heads;
  if (as<network::Scores>(operation)) size.columns = sizes_[operation.inputs[1]].rows;
  if (as<network::Pool>(operation)) size.rows = 1;
  if (const auto* source = as<network::Source>(operation)) size.rows = source->positions;
  if (const auto* moved = as<network::Rearrange>(operation)) {
    size.rows = moved->positions;
    size.columns = moved->width;
  }
  sizes_[operation.output] = size;
}

}  // namespace aero::mpc
