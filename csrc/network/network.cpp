#include "csrc/network/network.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "csrc/spec/nearest_word.h"

namespace aero::network {
namespace {

constexpr std::int64_t kMaxSize = 1099511627776;  // 2^40
constexpr std::int64_t kMaxLayers = 4096;

struct Inputs {
  std::size_t count = 1;
  bool more = false;
  bool lengths = false;
};

template <class Primitive>
Inputs inputs_of(const Primitive&) {
  Inputs found;
  if constexpr (requires { Primitive::kInputs; }) found.count = Primitive::kInputs;
  if constexpr (requires { Primitive::kTakesMore; }) found.more = Primitive::kTakesMore;
  if constexpr (requires { Primitive::kTakesLengths; }) found.lengths = Primitive::kTakesLengths;
  return found;
}

[[noreturn]] void refuse(const Operation& operation, const std::string& what) {
  throw std::invalid_argument(
      "network: " + std::string(kPrimitiveNames[operation.primitive.index()]) + " " +
      spec::quoted(operation.name) + ": " + what);
}

void check_sizes(Operation operation) {
  const bool is_source = std::holds_alternative<Source>(operation.primitive);
  const auto check = [&](std::string_view name, const auto& member, const auto&...) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(member)>, std::int64_t>) {
      const bool from_zero =
          name == "start" || name == "window" || (is_source && name == "positions");
      const std::int64_t smallest = from_zero ? 0 : 1;
      if (member < smallest || member > kMaxSize)
        refuse(operation, std::string(name) + " must be an integer from " +
                              std::to_string(smallest) + " to 2^40, got " + std::to_string(member));
    }
  };
  std::visit([&](auto& primitive) { primitive.fields(check); }, operation.primitive);
  const auto check_groups = [&](const auto& p) {
    if (p.heads % p.key_heads != 0)
      refuse(operation, "heads must be a multiple of key_heads, got " + std::to_string(p.heads) +
                            " and " + std::to_string(p.key_heads));
  };
  if (const auto* route = std::get_if<Route>(&operation.primitive)) {
    const auto [experts, groups] = std::pair{route->experts, route->groups};
    if (experts % groups != 0 || route->chosen_groups > groups ||
        route->group_best > experts / groups ||
        route->chosen > experts / groups * route->chosen_groups)
      refuse(operation, "chosen must be at most the experts of chosen_groups of groups, got " +
                            std::to_string(route->chosen) + " of " + std::to_string(experts));
  }
  if (const auto* scores = std::get_if<Scores>(&operation.primitive)) check_groups(*scores);
  if (const auto* sum = std::get_if<WeightedSum>(&operation.primitive)) check_groups(*sum);
}

void check_inputs(const Network& network, const Operation& operation,
                  const std::vector<bool>& written) {
  const Inputs wanted =
      std::visit([](const auto& primitive) { return inputs_of(primitive); }, operation.primitive);
  const std::size_t given = operation.inputs.size();
  const bool padded = given == wanted.count + 1 && wanted.lengths &&
                      network.values[operation.inputs.back()] == "lengths";
  if (given != wanted.count && !padded && !(wanted.more && given > wanted.count))
    refuse(operation, "must have " + std::to_string(wanted.count) + " inputs" +
                          (wanted.lengths ? ", or \"lengths\" too" : "") + ", got " +
                          std::to_string(given));
  for (const Value input : operation.inputs)
    if (!written[input])
      refuse(operation, "reads " + spec::quoted(network.values[input]) +
                            ", which no operation before it writes");
}

}  // namespace

void validate(const Network& network) {
  std::vector<bool> written(network.values.size(), false);
  for (Value value = 0; value < network.values.size(); ++value)
    written[value] = std::find(kGiven.begin(), kGiven.end(), network.values[value]) != kGiven.end();
  if (network.segments.empty() || network.segments.back().operations.empty())
    throw std::invalid_argument("network: must end with an operation, got none");
  for (const Segment& segment : network.segments) {
    if (segment.layers < 0 || segment.layers > kMaxLayers)
      throw std::invalid_argument("network: repeat must be an integer from 1 to " +
                                  std::to_string(kMaxLayers) + ", got " +
                                  std::to_string(segment.layers));
    for (const Operation& operation : segment.operations) {
      check_sizes(operation);
      check_inputs(network, operation, written);
      written[operation.output] = true;
    }
  }
}

}  // namespace aero::network
