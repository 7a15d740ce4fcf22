#include "csrc/mpc/attention_blocks.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace aero::mpc {
namespace {

using network::is;

constexpr std::int64_t kMostBlocks = 1024;

}  // namespace

std::vector<AttentionBlocks> attention_blocks(const network::Softmax& softmax, std::int64_t queries,
                                              std::int64_t keys, std::int64_t block) {
  if (block == 0 || !softmax.causal) return {{1, queries, keys}};
  const std::int64_t number = (queries + block - 1) / block;
  if (number > kMostBlocks)
    throw std::invalid_argument("simulate: attention_block must leave at most " +
                                std::to_string(kMostBlocks) + " blocks of " +
                                std::to_string(queries) + " tokens, got " + std::to_string(block));
  std::vector<AttentionBlocks> found;
  for (std::int64_t i = 0; i < number; ++i) {
    const std::int64_t first = keys - queries + i * block;
    const std::int64_t end = std::min(first + block, keys);
    const std::int64_t unseen =
        softmax.window > 0 ? std::max<std::int64_t>(first - softmax.window + 1, 0) : 0;
    const AttentionBlocks one{1, end - first, end - unseen};
    if (!found.empty() && found.back().queries == one.queries && found.back().keys == one.keys)
      ++found.back().count;
    else
      found.push_back(one);
  }
  return found;
}

std::vector<const network::Softmax*> softmaxes(const network::Segment& segment) {
  const std::vector<network::Operation>& operations = segment.operations;
  std::vector<const network::Softmax*> found(operations.size(), nullptr);
  std::map<network::Value, std::vector<std::size_t>> scores;     // products in the value
  std::map<network::Value, const network::Softmax*> of_weights;  // behind the value
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const network::Operation& operation = operations[i];
    std::vector<std::size_t> summands;
    if (is<network::Scores>(operation)) summands = {i};
    if (is<network::Add>(operation))
      for (const network::Value input : operation.inputs)
        if (const auto made = scores.find(input); made != scores.end())
          summands.insert(summands.end(), made->second.begin(), made->second.end());
    if (is<network::Shape>(operation) || is<network::WeightedSum>(operation))
      if (const auto made = of_weights.find(operation.inputs[0]); made != of_weights.end())
        found[i] = made->second;
    if (const auto* softmax = std::get_if<network::Softmax>(&operation.primitive)) {
      found[i] = softmax;
      if (const auto made = scores.find(operation.inputs[0]); made != scores.end())
        for (const std::size_t product : made->second) found[product] = softmax;
    }
    scores[operation.output] = std::move(summands);
    of_weights[operation.output] = is<network::WeightedSum>(operation) ? nullptr : found[i];
  }
  return found;
}

}  // namespace aero::mpc
