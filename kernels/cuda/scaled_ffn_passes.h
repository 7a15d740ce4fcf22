// The passes around the products of the scaled feed-forward layer on a GPU: the scales before them,
// and the gradients of the parameters after them. Equations: ../scaled_ffn.h.
#pragma once

#include "kernels/cuda/elements.h"
#include "kernels/cuda/row_team.h"
#include "kernels/scaled_ffn.h"

namespace aero::kernels::cuda {

/// 1 / alpha and b / alpha, which the product takes from the device.
struct ScaledFfnScaleParams {
  const float* alpha;
  const void* bias;  ///< [C], or null
  int64_t width;
  float* inverse_alpha;
  void* scaled_bias;  ///< [C], type of the stream
};

template <class Element, class Stream>
struct ScaledFfnScalePass {
  using Params = ScaledFfnScaleParams;
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;

  /// One at least, for 1 / alpha.
  static int64_t block_count(const Params& p) {
    return p.bias && p.width > 0 ? tiles_of(p.width, kThreads) : 1;
  }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const float alpha = *p.alpha;
    const int64_t column = block * kThreads + lane.thread;
    if (column == 0) *p.inverse_alpha = 1 / alpha;
    if (!p.bias || column >= p.width) return;
    const float bias =
        element_of<Element, Lane>(static_cast<const char*>(p.bias) + column * Element::kBytes, 0);
    const uint32_t bits = bits_of<Stream, Lane>(bias / alpha);
    if constexpr (Stream::kBytes == 4)
      static_cast<uint32_t*>(p.scaled_bias)[column] = bits;
    else
      static_cast<uint16_t*>(p.scaled_bias)[column] = static_cast<uint16_t>(bits);
  }
};

/// The params of the gradients and their scratch memory: partial sums that one pass leaves and the
/// next one adds up in order.
struct ScaledFfnReductionParams : ScaledFfnGradientParams {
  static constexpr int kRows = 256;      ///< of dy, in one partial sum
  static constexpr int kWeightRows = 8;  ///< of G and W, in one partial sum
  static constexpr int kColumns = 256;   ///< of the bias, in one block

  uint32_t* arrived;   ///< one number, which the first pass clears
  float* column_sums;  ///< [splits, C]
  float* products;     ///< [weight blocks], of <G, W>
  float* traces;       ///< [weight blocks], of trace(G)
  float* of_bias;      ///< [bias blocks], of b . sum(dy)

  ScaledFfnReductionParams(const ScaledFfnGradientParams& params, void* workspace)
      : ScaledFfnGradientParams(params),
        arrived(static_cast<uint32_t*>(workspace)),
        column_sums(reinterpret_cast<float*>(arrived + 4)),
        products(column_sums + splits(params) * params.width),
        traces(products + weight_blocks(params)),
        of_bias(traces + weight_blocks(params)) {}

  static constexpr int64_t splits(const ScaledFfnGradientParams& p) {
    return (p.rows + kRows - 1) / kRows;
  }
  static constexpr int64_t weight_blocks(const ScaledFfnGradientParams& p) {
    return (p.width + kWeightRows - 1) / kWeightRows;
  }
  /// One at least: dalpha and dbeta are written whatever the sizes are.
  static constexpr int64_t bias_blocks(const ScaledFfnGradientParams& p) {
    return p.width > 0 ? (p.width + kColumns - 1) / kColumns : 1;
  }
  static constexpr int64_t bytes(const ScaledFfnGradientParams& p) {
    return 16 + static_cast<int64_t>(sizeof(float)) *
                    (splits(p) * p.width + 2 * weight_blocks(p) + bias_blocks(p));
  }
};

/// Blocks of two kinds: sums of dy over kRows rows of some columns; then kWeightRows rows of G,
/// turned into dW where they lie, and their shares of <G, W> and trace(G).
template <class Element_>
struct ScaledFfnSumsPass {
  using Element = Element_;
  using Params = ScaledFfnReductionParams;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kPerChunk = kChunkElements<Element>;
  static constexpr int kTileColumns = kWarp * kPerChunk;
  using Team = RowTeam<kWarps, 2>;
  static constexpr int kSharedBytes = largest(Team::kSharedBytes, kWarps * kTileColumns * 4);
  static_assert(Params::kWeightRows == kWarps, "a warp has a row of G");

  static constexpr int64_t column_tiles(const Params& p) {
    return (p.width + kTileColumns - 1) / kTileColumns;
  }
  static int64_t block_count(const Params& p) {
    const int64_t blocks = Params::splits(p) * column_tiles(p) + Params::weight_blocks(p);
    return blocks > 0 ? blocks : 1;
  }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    if (block == 0 && lane.thread == 0) *p.arrived = 0;
    const int64_t tiles = column_tiles(p), of_columns = Params::splits(p) * tiles;
    if (p.width == 0) return;
    if (block < of_columns)
      sum_columns(p, lane, block / tiles, static_cast<int>(block % tiles) * kTileColumns);
    else
      take_weight_rows(p, lane, block - of_columns);
  }

 private:
  AERO_DEVICE static const char* row_of(const void* tensor, int64_t row, int64_t stride) {
    return static_cast<const char*>(tensor) + row * stride * Element::kBytes;
  }

  /// Every warp adds up every eighth row, a lane a chunk of columns; then the warps' sums meet.
  template <class Lane>
  AERO_DEVICE static void sum_columns(const Params& p, Lane& lane, int64_t split, int tile) {
    const auto width = static_cast<int>(p.width);
    const int column = tile + lane.thread % kWarp * kPerChunk;
    const int64_t end = p.rows < (split + 1) * Params::kRows ? p.rows : (split + 1) * Params::kRows;
    float sums[kPerChunk] = {};
    for (int64_t row = split * Params::kRows + warp_of(lane); row < end; row += kWarps) {
      uint32_t words[4];
      load_chunk<Element>(words, row_of(p.dy, row, width), column, width, 0);
      AERO_UNROLL
      for (int n = 0; n < kPerChunk; ++n) sums[n] += element_of<Element, Lane>(words, n);
    }
    // [kPerChunk][lanes] of each warp: lanes side by side, in different banks.
    const int base = warp_of(lane) * kTileColumns * 4;
    AERO_UNROLL
    for (int n = 0; n < kPerChunk; ++n) {
      uint32_t word[1];
      word[0] = __builtin_bit_cast(uint32_t, sums[n]);
      lane.store_words(base + (n * kWarp + lane.thread % kWarp) * 4, word);
    }
    lane.barrier();
    for (int slot = lane.thread; slot < kTileColumns; slot += kThreads) {
      float sum = 0;
      AERO_UNROLL
      for (int warp = 0; warp < kWarps; ++warp) {
        uint32_t word[1];
        lane.load_words(word, (warp * kTileColumns + slot) * 4);
        sum += __builtin_bit_cast(float, word[0]);
      }
      const int target = tile + slot % kWarp * kPerChunk + slot / kWarp;
      if (target < width) p.column_sums[split * p.width + target] = sum;
    }
  }

  template <class Lane>
  AERO_DEVICE static void take_weight_rows(const Params& p, Lane& lane, int64_t block) {
    const auto width = static_cast<int>(p.width);
    const int64_t row = block * Params::kWeightRows + warp_of(lane);
    const float inverse_alpha = 1 / *static_cast<const float*>(p.alpha);
    float product = 0, trace = 0;
    if (row < p.width) {
      char* gradient = static_cast<char*>(p.dweight) + row * p.width * Element::kBytes;
      const char* weight = row_of(p.weight.data, row, p.weight.strides.row);
      for (int column = lane.thread % kWarp * kPerChunk; column < width; column += kTileColumns) {
        uint32_t g[4], w[4];
        load_chunk<Element>(g, gradient, column, width, 0);
        load_chunk<Element>(w, weight, column, width, 0);
        float scaled[kPerChunk];
        AERO_UNROLL
        for (int n = 0; n < kPerChunk; ++n) {
          const float value = element_of<Element, Lane>(g, n);
          product = __builtin_fmaf(value, element_of<Element, Lane>(w, n), product);
          trace += column + n == row ? value : 0.0f;
          scaled[n] = value * inverse_alpha;
        }
        pack_chunk<Element, Lane>(g, scaled);
        store_chunk<Element>(gradient, column, width, g);
      }
    }
    product = Team::sum(lane, 0, product);
    trace = Team::sum(lane, 1, trace);
    if (lane.thread != 0) return;
    p.products[block] = product;
    p.traces[block] = trace;
  }
};

/// db from the column sums, and dalpha and dbeta by the block that ends last.
template <class Element_>
struct ScaledFfnScalarsPass {
  using Element = Element_;
  using Params = ScaledFfnReductionParams;
  static constexpr int kWarps = 8;
  static constexpr int kThreads = kWarps * kWarp;
  using Team = RowTeam<kWarps, 4>;
  static constexpr int kSharedBytes = Team::kSharedBytes;
  static_assert(Params::kColumns == kThreads, "a lane has a column");

  static int64_t block_count(const Params& p) { return Params::bias_blocks(p); }

  template <class Lane>
  AERO_DEVICE static void run(const Params& p, int64_t block, Lane& lane) {
    const float alpha = *static_cast<const float*>(p.alpha), inverse_alpha = 1 / alpha;
    const int64_t column = block * kThreads + lane.thread;
    float product = 0;
    if (column < p.width) {
      float sum = 0;
      for (int64_t split = 0; split < Params::splits(p); ++split)
        sum += p.column_sums[split * p.width + column];
      const char* bias = static_cast<const char*>(p.bias) + column * Element::kBytes;
      product = element_of<Element, Lane>(bias, 0) * sum;
      const uint32_t bits = bits_of<Element, Lane>(sum * inverse_alpha);
      if constexpr (Element::kBytes == 4)
        static_cast<uint32_t*>(p.dbias)[column] = bits;
      else
        static_cast<uint16_t*>(p.dbias)[column] = static_cast<uint16_t>(bits);
    }
    product = Team::sum(lane, 0, product);
    if (lane.thread == 0) p.of_bias[block] = product;
    const int64_t blocks = Params::bias_blocks(p);
    if (!lane.is_last_block(p.arrived, static_cast<uint32_t>(blocks))) return;
    const float of_bias = total(lane, 1, p.of_bias, blocks);
    const float of_weight = total(lane, 2, p.products, Params::weight_blocks(p));
    const float trace = total(lane, 3, p.traces, Params::weight_blocks(p));
    if (lane.thread != 0) return;
    *static_cast<float*>(p.dalpha) = -(of_weight + of_bias) * inverse_alpha * inverse_alpha;
    *static_cast<float*>(p.dbeta) = trace;
  }

 private:
  template <class Lane>
  AERO_DEVICE static float total(Lane& lane, int slot, const float* values, int64_t count) {
    float sum = 0;
    for (int64_t n = lane.thread; n < count; n += kThreads) sum += values[n];
    return Team::sum(lane, slot, sum);
  }
};

}  // namespace aero::kernels::cuda
