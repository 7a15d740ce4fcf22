#include "csrc/mpc/lowering.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "csrc/mpc/attention_blocks.h"
#include "csrc/mpc/network_analysis.h"
#include "csrc/mpc/value_sizes.h"
#include "csrc/spec/fields.h"
#include "csrc/spec/nearest_word.h"

namespace aero::mpc {
namespace {

using network::Network;
using network::Segment;
using network::Value;
using Inputs = std::vector<std::size_t>;

class Lowering {
 public:
  Lowering(const Network& network, const Stack& stack, const Pass& pass)
      : network_(network),
        stack_(stack),
        pass_(pass),
        causal_(is_causal(network)),
        sources_(network.values.size()),
        sizes_(network, pass.queries, pass.keys) {
    const bool can = can_absorb_ffn(network);
    if (stack.absorb_ffn == AbsorbFfn::kYes && !can)
      throw std::invalid_argument(
          "simulate: absorb_ffn must be False unless every FFN is one fused linear layer (FuFFN, "
          "ScFuFFN), no norm but FN is left, and there is no convolution and no shaped attention; "
          "use \"where_legal\" to absorb only then");
    absorbed_ = stack.absorb_ffn != AbsorbFfn::kNo && can;
  }

  OperationGraph graph() {
    if (stack_.setup && pass_.first) {
      graph_.push_back({"set-up", kOutsideLayers, Kind::kSetup, SessionSetup{}, {}, {}});
      for (Inputs& given : sources_) given = {0};
    }
    const std::int64_t layers = layer_count(network_);
    std::int64_t next_layer = 0;
    for (const Segment& segment : network_.segments) {
      folds_ = folding_norms(segment);
      softmaxes_ = softmaxes(segment);
      for (std::int64_t i = 0; i < std::max<std::int64_t>(segment.layers, 1); ++i) {
        layer_ = segment.layers > 0 ? next_layer++ : kOutsideLayers;
        rows_read_ = rows_to_compute(segment, layer_ == layers - 1);
        for (index_ = 0; index_ < segment.operations.size(); ++index_)
          lower(segment.operations[index_]);
      }
    }
    use_logits();
    return std::move(graph_);
  }

 private:
  std::vector<std::int64_t> rows_to_compute(const Segment& segment, bool is_last_layer) const {
    const bool is_head = &segment == &network_.segments.back();
    // A last layer of one row leaves no other row to a head.
    const bool one_row = stack_.last_layer_one_row && (is_head || is_last_layer);
    const bool few = one_row || (is_head && stack_.last_token_head);
    if (!few) return std::vector<std::int64_t>(segment.operations.size(), kAllRows);
    return rows_read(network_, segment);
  }

  void lower(const network::Operation& operation) {
    rows_ = operation.inputs.empty() ? 1 : sizes_.rows(operation.inputs[0]);
    if (rows_read_[index_] != kAllRows) rows_ = std::min(rows_, rows_read_[index_]);
    Inputs made = std::visit(
        [&](const auto& primitive) { return become(operation, primitive, inputs_of(operation)); },
        operation.primitive);
    sources_[operation.output] = std::move(made);
    sizes_.write(operation);
  }

  // The operations behind all inputs, each once, in their order.
  Inputs inputs_of(const network::Operation& operation) const {
    Inputs all;
    for (const Value value : operation.inputs)
      for (const std::size_t source : sources_[value])
        if (std::find(all.begin(), all.end(), source) == all.end()) all.push_back(source);
    return all;
  }

  Inputs add(const network::Operation& operation, const OperationShape& shape, Inputs inputs,
             std::string_view written = {}) {
    return add(kind_of(operation.part), operation.name, shape, std::move(inputs), written);
  }

  Inputs add(Kind kind, std::string name, const OperationShape& shape, Inputs inputs,
             std::string_view written = {}) {
    graph_.push_back({std::move(name), layer_, kind, shape, std::move(inputs), written});
    return {graph_.size() - 1};
  }

  // Of all sequences.
  std::int64_t positions(std::int64_t rows) const {
    return element_count({pass_.batch, rows}, "positions");
  }

  std::int64_t elements(std::int64_t width, std::string_view what) const {
    return element_count({positions(rows_), width}, what);
  }

  bool opened() const { return stack_.cached_weights && !pass_.first; }

  // A layer of one row sees all columns.
  bool is_skipped(std::int64_t keys) const {
    return stack_.causal_skip && causal_ && rows_ == keys;
  }

  // Scores that are worked on, of all heads and sequences.
  std::int64_t live_scores(std::int64_t heads, const AttentionBlocks& blocks) const {
    const std::int64_t S = blocks.keys;
    const std::int64_t per_head = is_skipped(S) ? S * (S + 1) / 2 : blocks.queries * S;
    return element_count({pass_.batch, heads, blocks.count, per_head}, "softmax");
  }

  // The queries of a group of heads are rows of one product with its keys.
  HeadProduct head_product(std::int64_t heads, std::int64_t key_heads,
                           const AttentionBlocks& blocks, MatmulShape shape,
                           Triangle skipped) const {
    const std::int64_t group = heads / key_heads;
    shape.rows *= group;
    const Triangle triangle = is_skipped(blocks.keys) && group == 1 ? skipped : Triangle::kNone;
    return {element_count({pass_.batch, key_heads, blocks.count}, "heads"), shape, triangle};
  }

  // Where keys are repeated for each query head instead, a product has their ciphertexts once more.
  template <class Heads>
  static std::string_view grouped(const Heads& p, std::string_view written) {
    return p.heads > p.key_heads ? written : std::string_view{};
  }

  // Calls `make` for the blocks of attention that an operation belongs to, with what they read: of
  // the first value their own part, if it was made by blocks, of any other all.
  template <class Make>
  Inputs by_blocks(const network::Operation& operation, const Inputs& inputs, Make make) const {
    const network::Softmax* softmax = softmaxes_[index_];
    const std::int64_t keys = sizes_.columns(operation);
    if (softmax == nullptr || stack_.attention_block == 0)
      return make(AttentionBlocks{1, rows_, keys}, inputs);
    const auto blocks = attention_blocks(*softmax, rows_, keys, stack_.attention_block);
    const Inputs& first = sources_[operation.inputs[0]];
    const bool parted = !network::is<network::Scores>(operation) && first.size() == blocks.size();
    Inputs made;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      Inputs read;
      for (const std::size_t one : inputs) {
        const auto part = std::find(first.begin(), first.end(), one);
        if (!parted || part == first.end() ||
            part == first.begin() + static_cast<std::ptrdiff_t>(i))
          read.push_back(one);
      }
      const Inputs own = make(blocks[i], std::move(read));
      made.insert(made.end(), own.begin(), own.end());
    }
    return made;
  }

  // --- one function per primitive: the operations behind its result --------------------------

  template <class Local>
    requires(Local::kIsLocal)
  static Inputs become(const network::Operation&, const Local&, Inputs inputs) {
    return inputs;
  }

  Inputs become(const network::Operation& operation, const network::Embed& p, Inputs inputs) {
    // Positions are public: rows of a table at known places are the parties' own shares.
    if (network_.values[operation.inputs[0]] == "positions") return {};
    const EmbeddingShape shape{positions(rows_), p.rows, p.width, opened()};
    return add(operation, shape, std::move(inputs));
  }

  Inputs become(const network::Operation& operation, const network::Linear& p, Inputs inputs) {
    if (absorbed_ && kind_of(operation.part) == Kind::kFfn) return inputs;
    const WeightProduct shape{{positions(rows_), p.in, p.out}, opened()};
    return add(operation, shape, std::move(inputs));
  }

  // The rotating channels times cos, their pairs times sin, both public, each with a truncation of
  // its own.
  Inputs become(const network::Operation& operation, const network::Rotate& p, Inputs inputs) {
    const Truncation shape{element_count({positions(rows_), p.heads, p.channels}, "rotary")};
    const Kind kind = kind_of(operation.part);
    constexpr std::string_view kWritten = "x cos + rotate_half(x) sin, both public";
    Inputs made = add(kind, operation.name + " times cos", shape, inputs, kWritten);
    made.push_back(add(kind, operation.name + " times sin", shape, std::move(inputs), kWritten)[0]);
    return made;
  }

  // The queries are multiplied by 1/sqrt(d_k), a public constant. One temperature per head folds
  // into W_Q, one per position does not; a public one is part of the constant. SPU's compiler
  // multiplies the constant into secret temperatures of positions instead, of all sequences at
  // once; the server does so alone where it knows them.
  Inputs become(const network::Operation& operation, const network::Scores& p, Inputs inputs) {
    const std::int64_t queries =
        element_count({pass_.batch, rows_, p.heads, p.head_dim}, "queries");
    const bool tempered = stack_.secret_temperature && p.per_position;
    const std::int64_t scaled =
        tempered ? element_count({rows_, p.heads}, "temperatures") : queries;
    // As a factor of W_Q the constant needs no product and no truncation of its own: x (W_Q c) =
    // (x W_Q) c up to the rounding of the weights' last bit.
    if (!stack_.fold_score_scale && p.scale != 1.0 && !(tempered && stack_.private_weights))
      inputs = add(Kind::kQkvProj, "1/sqrt(d_k)", Truncation{scaled}, std::move(inputs));
    if (tempered)
      inputs = add(Kind::kQkvProj, "1/temperature", WeightScaling{queries}, std::move(inputs));
    return by_blocks(operation, inputs, [&](const AttentionBlocks& blocks, Inputs read) {
      const MatmulShape shape{blocks.queries, p.head_dim, blocks.keys};
      read = add(operation, head_product(p.heads, p.key_heads, blocks, shape, Triangle::kResult),
                 std::move(read), grouped(p, "q of a group @ k.mT, its rows below each other"));
      if (p.soft_cap <= 0) return read;
      const FunctionShape cap{&priced_function("soft_cap"), live_scores(p.heads, blocks)};
      return add(kind_of(operation.part), "soft cap", cap, std::move(read));
    });
  }

  Inputs become(const network::Operation& operation, const network::Softmax& p,
                const Inputs& inputs) {
    const std::int64_t sink = operation.has_weight("sink") ? 1 : 0;  // a score of each row
    return by_blocks(operation, inputs, [&](const AttentionBlocks& blocks, Inputs read) {
      const std::int64_t rows =
          element_count({pass_.batch * p.heads, blocks.count, blocks.queries}, "softmax");
      const std::int64_t live = live_scores(p.heads, blocks) + sink * rows;
      return add(operation, SoftmaxShape{rows, blocks.keys + sink, live}, std::move(read));
    });
  }

  // The identity and the means are one matrix per head: only the softmax's factor is a product, of
  // every score.
  Inputs become(const network::Operation& operation, const network::Shape& p, Inputs inputs) {
    if (!stack_.secret_shape_factors) return inputs;
    return by_blocks(operation, inputs, [&](const AttentionBlocks& blocks, Inputs read) {
      return add(operation, WeightScaling{live_scores(p.heads, blocks)}, std::move(read));
    });
  }

  Inputs become(const network::Operation& operation, const network::WeightedSum& p,
                const Inputs& inputs) {
    return by_blocks(operation, inputs, [&](const AttentionBlocks& blocks, Inputs read) {
      const MatmulShape shape{blocks.queries, blocks.keys, p.head_dim};
      return add(operation,
                 head_product(p.heads, p.key_heads, blocks, shape, Triangle::kLeftFactor),
                 std::move(read), grouped(p, "weights of a group @ v, its rows below each other"));
    });
  }

  Inputs become(const network::Operation& operation, const network::Norm& p, Inputs inputs) {
    const bool gain = std::any_of(operation.weights.begin(), operation.weights.end(),
                                  [](const auto& one) { return one.first == "weight"; });
    const PricedFunction* function = priced_function(p.kind, gain);
    if (function == nullptr) {
      if (folds_[index_]) return inputs;
      return add(operation, WeightScaling{elements(p.width, "gain")}, std::move(inputs));
    }
    if (!function->of_rows)
      return add(operation, FunctionShape{function, elements(p.width, "norm")}, std::move(inputs));
    const std::int64_t rows =
        element_count({positions(rows_), sizes_.heads(operation.inputs[0])}, "norm");
    return add(operation, FunctionShape{function, rows, p.width}, std::move(inputs));
  }

  Inputs become(const network::Operation& operation, const network::Activation& p, Inputs inputs) {
    const FunctionShape shape{&priced_function(p.function), elements(p.width, "activation")};
    return add(operation, shape, std::move(inputs));
  }

  Inputs become(const network::Operation& operation, const network::Multiply& p, Inputs inputs) {
    return add(operation, SharedProduct{elements(p.width, "product")}, std::move(inputs));
  }

  // A sum waits for its summands, and so for nothing behind one of them: one way back from the last
  // to the earliest, whatever their number.
  Inputs become(const network::Operation&, const network::Add&, Inputs inputs) {
    if (inputs.size() < 2) return inputs;
    const auto [first, last] = std::minmax_element(inputs.begin(), inputs.end());
    const std::size_t earliest = *first;
    std::vector<bool> is_waited_for(*last - earliest + 1, false);  // of earliest, ..., last
    std::vector<bool> is_behind = is_waited_for;
    for (const std::size_t summand : inputs) is_waited_for[summand - earliest] = true;
    for (std::size_t i = is_waited_for.size(); i-- > 0;)
      for (const std::size_t input : graph_[earliest + i].inputs)
        if (is_waited_for[i] && input >= earliest)
          is_waited_for[input - earliest] = is_behind[input - earliest] = true;
    std::erase_if(inputs, [&](std::size_t one) { return is_behind[one - earliest]; });
    return inputs;
  }

  // One row after the other. A group's largest are looked for like a token's.
  Inputs become(const network::Operation& operation, const network::Route& p, Inputs inputs) {
    const std::int64_t rows = positions(rows_);
    const auto then = [&](const OperationShape& shape) {
      inputs = add(operation, shape, std::move(inputs));
    };
    const auto function = [&](std::string_view name, std::int64_t width) {
      then(FunctionShape{&priced_function(name), element_count({rows, width}, "router")});
    };
    const auto softmax = [&](std::int64_t width) {
      then(SoftmaxShape{rows, width, element_count({rows, width}, "router")});
    };
    if (p.scoring == network::Scoring::kSoftmax) softmax(p.experts);
    if (p.scoring == network::Scoring::kSigmoid) function("logistic", p.experts);
    if (p.chosen_groups < p.groups) {
      then(TopKShape{element_count({rows, p.groups}, "router"), p.experts / p.groups, p.group_best,
                     false});
      then(TopKShape{rows, p.groups, p.chosen_groups});
      function("one_hot", element_count({p.chosen_groups, p.groups}, "router"));
      function("masked", p.experts);
    }
    then(TopKShape{rows, p.experts, p.chosen});
    if (p.scoring == network::Scoring::kSoftmaxOfChosen) softmax(p.chosen);
    if (p.normalized) {
      function("reciprocal", 1);
      then(SharedProduct{element_count({rows, p.chosen}, "router")});
    }
    if (p.revealed)
      then(Opening{element_count({rows, p.chosen}, "router"), true});
    else
      function("one_hot", element_count({p.chosen, p.experts}, "router"));
    return inputs;
  }

  Inputs become(const network::Operation& operation, const network::Argmax& p, Inputs inputs) {
    return add(operation, Argmax{p.width, positions(rows_)}, std::move(inputs));
  }

  // The last product, behind which logits may only be scaled or go through a function; nullptr
  // where another operation makes the result.
  const network::Linear* logits_product() const {
    const std::vector<network::Operation>& last = network_.segments.back().operations;
    for (auto one = last.rbegin(); one != last.rend(); ++one) {
      if (const auto* found = std::get_if<network::Linear>(&one->primitive)) return found;
      if (!std::holds_alternative<network::Scale>(one->primitive) &&
          !std::holds_alternative<network::Activation>(one->primitive))
        return nullptr;
    }
    return nullptr;
  }

  // --- the pass --------------------------------------------------------------------------------

  void use_logits() {
    layer_ = kOutsideLayers;
    const network::Linear* head = logits_product();
    if (head == nullptr) return;
    const Inputs& logits = sources_[network_.result];
    const std::int64_t V = head->out;
    if (pass_.next_token == NextToken::kClient) {
      add(Kind::kReveal, "logits to the client", Opening{positions(V)}, logits);
      return;
    }
    const bool opened = pass_.next_token == NextToken::kArgmax;
    if (!opened && !stack_.argmax) return;
    const Inputs token = add(Kind::kArgmax, "next token", Argmax{V, pass_.batch}, logits);
    if (opened) add(Kind::kReveal, "token to the client", Opening{pass_.batch}, token);
  }

  const Network& network_;
  const Stack& stack_;
  const Pass& pass_;
  const bool causal_;
  bool absorbed_ = false;
  OperationGraph graph_;
  std::vector<Inputs> sources_;  // of each value: the operations that must be finished
  ValueSizes sizes_;
  Flags folds_;                                     // of the segment's operations
  std::vector<const network::Softmax*> softmaxes_;  // likewise
  std::vector<std::int64_t> rows_read_;             // likewise
  std::int64_t layer_ = kOutsideLayers;
  std::size_t index_ = 0;  // in the segment
  std::int64_t rows_ = 0;  // of one sequence, of the operation
};

}  // namespace

Pass whole_context(const Network& network) {
  return {.queries = network.context_length, .keys = network.context_length};
}

OperationGraph lower(const Network& network, const Stack& stack, const Pass& pass) {
  const auto check = [](const char* name, std::int64_t value, std::int64_t largest) {
    if (value < 1 || value > largest)
      throw std::invalid_argument("simulate: " + std::string(name) +
                                  " must be an integer from 1 to " + std::to_string(largest) +
                                  ", got " + std::to_string(value));
  };
  check("batch", pass.batch, kMaxBatch);
  check("keys", pass.keys, spec::kMaxContext);
  check("queries", pass.queries, pass.keys);
  return Lowering(network, stack, pass).graph();
}

}  // namespace aero::mpc
