#include "csrc/mpc/lowering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <variant>

#include "csrc/mpc/attention_blocks.h"
#include "csrc/spec/counts.h"
#include "csrc/spec/presets.h"
#include "tests/cpp/mpc/of_specs.h"

namespace aero::mpc {
namespace {

spec::ArchitectureSpec tiny(std::string_view label, const spec::FieldValues& fields = {}) {
  return spec::architecture_from_label(label, "tiny", fields);
}

std::int64_t count(const OperationGraph& graph, Kind kind) {
  return std::count_if(graph.begin(), graph.end(),
                       [&](const Operation& operation) { return operation.kind == kind; });
}

constexpr std::array kLabels{
    "SM+LN+G",      "SM+LR(layer)",       "SM+FN+R",           "SM+ScFuFFN_i1",
    "SOTA:SM+LN+R", "SOTA:SM+ScFuFFN",    "EReg(SM(t)+FuFFN)", "SM+WNFFN(qkvo+ffn)",
    "SM+DyT+G",     "SM+Derf+ScFuFFN_i1", "SOTA:SM+Derf+R"};

TEST(Lowering, InputsAreEarlierAndEverythingIsUsed) {
  for (const char* label : kLabels) {
    for (const bool parallel : {false, true}) {
      if (!parallel && tiny(label).shaped_attention) continue;
      const OperationGraph graph =
          build_graph(tiny(label, {{"parallel_residual", spec::FieldValue{parallel}}}), Stack{});
      std::set<std::size_t> used;
      for (std::size_t i = 0; i < graph.size(); ++i)
        for (const std::size_t input : graph[i].inputs) {
          EXPECT_LT(input, i) << label;
          used.insert(input);
        }
      EXPECT_EQ(used.size(), graph.size() - 1) << label;  // all but the last one
    }
  }
}

TEST(Lowering, NonlinearOperationsEqualTheSpecs) {
  for (const char* label : kLabels) {
    const spec::ArchitectureSpec spec = tiny(label);
    const OperationGraph graph = build_graph(spec, Stack{});
    const spec::NonlinearOperations operations = spec::nonlinear_operations(spec);
    EXPECT_EQ(count(graph, Kind::kSoftmax) * spec.num_heads, operations.softmax.count) << label;
    EXPECT_EQ(
        count(graph, Kind::kLayerNorm),
        operations.layernorm.count + operations.dynamic_tanh.count + operations.dynamic_erf.count)
        << label;
    EXPECT_EQ(count(graph, Kind::kActivation), operations.activation.count) << label;
  }
}

TEST(Lowering, AttentionAndFfnOfAParallelBlockDoNotWaitForEachOther) {
  const OperationGraph graph =
      build_graph(tiny("SM+R", {{"parallel_residual", spec::FieldValue{true}}}), Stack{});
  const auto find = [&](std::string_view name) {
    return std::find_if(graph.begin(), graph.end(), [&](const Operation& operation) {
      return operation.layer == 0 && operation.name == name;
    });
  };
  EXPECT_EQ(find("FFN, in")->inputs, find("queries, keys, values")->inputs);
}

TEST(Lowering, ShapedAttentionHasNoValueAndOutputProjections) {
  const OperationGraph graph = build_graph(tiny("SOTA:SM+ScFuFFN"), Stack{});
  EXPECT_EQ(count(graph, Kind::kQkvProj), 2 * 2);  // queries and keys, 1/sqrt(d_k); two layers
  EXPECT_EQ(shape_text(graph[2].shape), "32x32x64");
  // The values are the stream's own channels, shared out among the heads, whatever head_dim is.
  const auto narrow = tiny("SOTA:SM+ScFuFFN", {{"head_dim", spec::FieldValue{std::int64_t{4}}}});
  for (const Operation& operation : build_graph(narrow, Stack{}))
    if (operation.kind == Kind::kPv) {
      EXPECT_EQ(shape_text(operation.shape), "2 x 32x32x16");
    }
}

TEST(Lowering, OnlyTheFirstPassSetsUp) {
  const Stack stack{.setup = true};
  Pass pass = whole_context(tiny("SM"));
  EXPECT_EQ(count(build_graph(tiny("SM"), stack, pass), Kind::kSetup), 1);
  pass.first = false;
  EXPECT_EQ(count(build_graph(tiny("SM"), stack, pass), Kind::kSetup), 0);
}

TEST(Lowering, FoldableNormsAreFree) {
  EXPECT_EQ(build_graph(tiny("SM+FN+R"), Stack{}).size(),
            build_graph(tiny("SM+R"), Stack{}).size());
}

TEST(Lowering, FoldableNormsBeforeShapedAttentionScaleItsValues) {
  for (const char* label : {"SOTA:SM+FN+R", "SOTA:SM+FN(scalar)+R"}) {
    const OperationGraph graph = build_graph(tiny(label), Stack{});
    const OperationShape gain = WeightScaling{32 * 32};  // T d
    EXPECT_EQ(std::count_if(graph.begin(), graph.end(),
                            [&](const Operation& o) { return o.shape == gain; }),
              2)
        << label;
  }
}

TEST(Lowering, SecretShapeFactorsAreOneProductPerScore) {
  const auto scores = [](const Stack& stack) {
    std::vector<std::string> shapes;
    for (const Operation& operation : build_graph(tiny("SOTA:SM"), stack))
      if (operation.name == "shape factor") shapes.push_back(shape_text(operation.shape));
    return shapes;
  };
  using Shapes = std::vector<std::string>;
  EXPECT_EQ(scores(Stack{}), Shapes{});
  EXPECT_EQ(scores({.secret_shape_factors = true}), (Shapes{"2048", "2048"}));  // H T T
  EXPECT_EQ(scores({.last_layer_one_row = true, .secret_shape_factors = true}),
            (Shapes{"2048", "64"}));
  EXPECT_EQ(scores({.causal_skip = true, .secret_shape_factors = true}),
            (Shapes{"1056", "1056"}));  // H T (T + 1) / 2
  EXPECT_EQ(count(build_graph(tiny("SM"), {.secret_shape_factors = true}), Kind::kPv), 2);
}

// Two heads of 16 channels at 32 positions, in blocks of 12: two whole ones and a rest.
TEST(Lowering, BlocksOfQueriesReadWhatOneOfThemSees) {
  const OperationGraph graph = build_graph(tiny("SM"), {.attention_block = 12});
  const auto shapes = [&](Kind kind) {
    std::vector<std::string> found;
    for (const Operation& operation : graph)
      if (operation.layer == 0 && operation.kind == kind)
        found.push_back(operation.name + " " + shape_text(operation.shape));
    return found;
  };
  using Shapes = std::vector<std::string>;
  EXPECT_EQ(shapes(Kind::kQk),
            (Shapes{"scores 2 x 12x16x12", "scores 2 x 12x16x24", "scores 2 x 8x16x32"}));
  EXPECT_EQ(shapes(Kind::kSoftmax), (Shapes{"softmax 24x12", "softmax 24x24", "softmax 16x32"}));
  EXPECT_EQ(shapes(Kind::kPv),
            (Shapes{"heads 2 x 12x12x16", "heads 2 x 12x24x16", "heads 2 x 8x32x16"}));
  // Each waits for its own block alone, and what comes after for all.
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (graph[i].layer != 0) continue;
    if (graph[i].kind == Kind::kSoftmax) {
      ASSERT_EQ(graph[i].inputs.size(), 1U);
      EXPECT_EQ(graph[graph[i].inputs[0]].kind, Kind::kQk);
    }
    if (graph[i].kind == Kind::kPv) {
      EXPECT_EQ(graph[i].inputs.size(), 2U);
    }
    if (graph[i].name == "projection") {
      EXPECT_EQ(graph[i].inputs.size(), 3U);
    }
  }
}

TEST(Lowering, BlocksBehindAWindowReadItAloneAndGoTogether) {
  const network::Softmax window{.heads = 2, .window = 8}, all{.heads = 2};
  using Blocks = std::vector<AttentionBlocks>;
  // Of the block's first query the window reaches seven keys back.
  EXPECT_EQ(attention_blocks(window, 32, 32, 8), (Blocks{{1, 8, 8}, {3, 8, 15}}));
  EXPECT_EQ(attention_blocks(window, 1, 32, 8), (Blocks{{1, 1, 8}}));  // a later token
  EXPECT_EQ(attention_blocks(window, 10, 32, 8), (Blocks{{1, 8, 15}, {1, 2, 9}}));
  EXPECT_EQ(attention_blocks(all, 32, 32, 0), (Blocks{{1, 32, 32}}));
  EXPECT_EQ(attention_blocks(all, 32, 32, 40), (Blocks{{1, 32, 32}}));
  EXPECT_EQ(attention_blocks({.heads = 2, .causal = false}, 32, 32, 8), (Blocks{{1, 32, 32}}));
  EXPECT_THROW(attention_blocks(all, 5000, 5000, 1), std::invalid_argument);
}

TEST(Lowering, BlocksAndSingleScoresAreNotSparedAtOnce) {
  EXPECT_THROW(with_fields(stack("aero-optimized"), {{"attention_block", std::int64_t{8}}}),
               std::invalid_argument);
}

// Half of two heads' 16 channels at 32 positions, queries and keys, cos and sin.
TEST(Lowering, RotaryPositionsAreFourTruncations) {
  const auto rotations = [](double fraction, const Stack& stack) {
    const auto graph =
        build_graph(tiny("SM", {{"rotary_fraction", spec::FieldValue{fraction}}}), stack);
    std::vector<std::string> shapes;
    for (const Operation& operation : graph)
      if (operation.kind == Kind::kQk && std::holds_alternative<Truncation>(operation.shape))
        shapes.push_back(shape_text(operation.shape));
    return shapes;
  };
  EXPECT_EQ(rotations(0.0, Stack{}).size(), 0U);
  EXPECT_EQ(rotations(0.5, Stack{}), std::vector<std::string>(8, "512"));
  const auto last = rotations(0.5, {.last_layer_one_row = true});
  EXPECT_EQ(std::vector<std::string>(last.end() - 4, last.end()),
            (std::vector<std::string>{"16", "16", "512", "512"}));
}

TEST(Lowering, PrunedLayersHaveNoFfnAndNoNormBeforeIt) {
  const OperationGraph graph = build_graph(tiny("SM+LN+R_i2"), Stack{});
  EXPECT_EQ(count(graph, Kind::kFfn), 0);
  EXPECT_EQ(count(graph, Kind::kLayerNorm), 2 + 1);
}

TEST(Lowering, DynamicNormsStandWhereALayerNormStands) {
  for (const auto& [label, function] :
       {std::pair{"SM+DyT+R_i1", "dynamic_tanh"}, std::pair{"SM+Derf+R_i1", "dynamic_erf"}}) {
    const OperationGraph graph = build_graph(tiny(label), {.last_token_head = true});
    const OperationGraph layer_norms = build_graph(tiny("SM+LN+R_i1"), {.last_token_head = true});
    ASSERT_EQ(graph.size(), layer_norms.size());
    std::vector<FunctionShape> norms;
    for (std::size_t i = 0; i < graph.size(); ++i) {
      EXPECT_EQ(graph[i].name, layer_norms[i].name);
      EXPECT_EQ(graph[i].inputs, layer_norms[i].inputs);
      const auto* shape = std::get_if<FunctionShape>(&graph[i].shape);
      if (shape != nullptr && graph[i].kind == Kind::kLayerNorm) norms.push_back(*shape);
    }
    const FunctionShape all{&priced_function(function), 32 * 32};
    EXPECT_EQ(norms, (std::vector<FunctionShape>{all, all, all, {all.function, 32}}));
  }
}

TEST(Lowering, AbsorptionIsAnErrorWhereItIsNotExact) {
  const Stack absorb{.absorb_ffn = AbsorbFfn::kYes};
  for (const char* label :
       {"SM+R", "SM", "SM+ScFFN", "SM+LN+FuFFN", "SM+DyT+FuFFN", "SOTA:SM+ScFuFFN",
        "SM+FN+ScFuFFN+S4", "SM+ScFuFFN+C4", "SM+ScFuFFN+D4"}) {
    try {
      build_graph(tiny(label), absorb);
      FAIL() << label;
    } catch (const std::invalid_argument& error) {
      for (const char* condition :
           {"one fused linear layer", "no norm but FN", "no convolution", "no shaped attention"})
        EXPECT_NE(std::string(error.what()).find(condition), std::string::npos) << condition;
    }
  }
  const auto normed = tiny("SM+ScFuFFN", {{"final_norm", spec::FieldValue{std::string("layer")}}});
  EXPECT_THROW(build_graph(normed, absorb), std::invalid_argument);
  EXPECT_EQ(count(build_graph(tiny("SM+FN+ScFuFFN"), absorb), Kind::kFfn), 0);
  EXPECT_EQ(count(build_graph(tiny("SM+R"), {.absorb_ffn = AbsorbFfn::kWhereLegal}), Kind::kFfn),
            4);
}

TEST(Lowering, LastLayerOfOneRowStillNeedsAllKeys) {
  const OperationGraph graph = build_graph(tiny("SM"), {.last_layer_one_row = true});
  std::vector<std::string> scores;
  for (const Operation& operation : graph)
    if (operation.kind == Kind::kQk) scores.push_back(shape_text(operation.shape));
  EXPECT_EQ(scores, (std::vector<std::string>{"2 x 32x16x32", "2 x 1x16x32"}));
}

TEST(Lowering, LastLayerOfOneRowLeavesOneRowToTheHead) {
  const OperationGraph graph = build_graph(tiny("SM+LN"), {.last_layer_one_row = true});
  const OperationGraph both =
      build_graph(tiny("SM+LN"), {.last_token_head = true, .last_layer_one_row = true});
  ASSERT_EQ(graph.size(), both.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    EXPECT_EQ(shape_text(graph[i].shape), shape_text(both[i].shape)) << graph[i].name;
    if (graph[i].kind == Kind::kLmHead) {
      EXPECT_EQ(shape_text(graph[i].shape), "1x32x256");
    }
  }
}

// Behind the logits, and a function of them, there are as many columns as tokens; scores have those
// of their keys.
TEST(Lowering, ASoftmaxHasTheColumnsOfWhatItReads) {
  network::Network network = network::describe(tiny("SM"));
  std::vector<network::Operation>& head = network.segments.back().operations;
  for (const network::Primitive& next :
       {network::Primitive{network::Activation{network::Function::kExp, 256}},
        network::Primitive{network::Softmax{.heads = 1}}}) {
    network::Operation more = head.back();
    more.inputs = {more.output};
    more.primitive = next;
    head.push_back(more);
  }
  std::vector<std::string> shapes;
  for (const Operation& operation : lower(network, {}, whole_context(network)))
    if (std::holds_alternative<SoftmaxShape>(operation.shape))
      shapes.push_back(shape_text(operation.shape));
  EXPECT_EQ(shapes, (std::vector<std::string>{"64x32", "64x32", "32x256"}));
}

// A classifier behind one layer of attention, on the mean of all rows or on one of them.
TEST(Lowering, LastLayerOfOneRowHasAllRowsWhereTheirMeanIsRead) {
  const auto scores = [](network::PoolKind kind) {
    network::Network network = network::describe(tiny("SM+LN+R"));
    std::vector<network::Operation>& head = network.segments.back().operations;
    network::Operation pool = head.back();
    pool.inputs = {pool.output};
    pool.primitive = network::Pool{kind};
    head.push_back(pool);
    const Pass whole = whole_context(network);
    std::vector<std::string> shapes;
    for (const Operation& operation : lower(network, {.last_layer_one_row = true}, whole))
      if (operation.kind == Kind::kQk) shapes.push_back(shape_text(operation.shape));
    return shapes;
  };
  EXPECT_EQ(scores(network::PoolKind::kMean),
            (std::vector<std::string>{"2 x 32x16x32", "2 x 32x16x32"}));
  for (const auto one : {network::PoolKind::kFirst, network::PoolKind::kLast})
    EXPECT_EQ(scores(one), (std::vector<std::string>{"2 x 32x16x32", "2 x 1x16x32"}));
}

TEST(Lowering, SecretTemperaturePerPositionIsOneProductPerQueryElement) {
  const Stack secret{.secret_temperature = true};
  EXPECT_EQ(count(build_graph(tiny("SM(t)"), secret), Kind::kQkvProj), 2 * 4);
  EXPECT_EQ(count(build_graph(tiny("SM(t:head)"), secret), Kind::kQkvProj), 2 * 3);
  EXPECT_EQ(count(build_graph(tiny("SM(t)"), Stack{}), Kind::kQkvProj), 2 * 3);
}

// SPU's compiler multiplies the scale into the temperatures, 32 rows of 2 heads.
TEST(Lowering, SecretTemperaturesTakeTheScaleOfTheScores) {
  const auto scales = [](const Stack& stack) {
    std::vector<std::string> shapes;
    for (const Operation& operation :
         build_graph(tiny("SM(t)"), stack, {.batch = 3, .queries = 32, .keys = 32}))
      if (operation.name == "1/sqrt(d_k)") shapes.push_back(shape_text(operation.shape));
    return shapes;
  };
  EXPECT_EQ(scales({.secret_temperature = true}), (std::vector<std::string>{"64", "64"}));
  // The server knows its own.
  EXPECT_EQ(scales({.private_weights = true, .secret_temperature = true}),
            std::vector<std::string>{});
  EXPECT_EQ(scales(Stack{}), (std::vector<std::string>{"3072", "3072"}));
}

TEST(Lowering, AFoldedScaleHasNoTruncation) {
  const auto graph = build_graph(tiny("SM"), {.fold_score_scale = true});
  EXPECT_EQ(count(graph, Kind::kQkvProj), 2 * 2);
  EXPECT_EQ(count(build_graph(tiny("SM"), Stack{}), Kind::kQkvProj), 2 * 3);
}

TEST(Lowering, OneQuerySeesAllKeysOfItsSequenceOnly) {
  const auto graph = build_graph(tiny("SM+R"), Stack{}, {.batch = 3, .queries = 1, .keys = 40});
  std::set<std::string> shapes;
  for (const Operation& operation : graph)
    if (operation.layer == 0) shapes.insert(shape_text(operation.shape));
  EXPECT_EQ(shapes, (std::set<std::string>{"3x32x96", "96", "6 x 1x16x40", "6x40", "6 x 1x40x16",
                                           "3x32x32", "3x32x128", "384", "3x128x32"}));
}

TEST(Lowering, SpecOutOfRangeIsAnError) {
  spec::ArchitectureSpec spec = tiny("SM");
  spec.context_length = 0;
  EXPECT_THROW(build_graph(spec, Stack{}), std::invalid_argument);
}

}  // namespace
}  // namespace aero::mpc
