// One query per head against cached keys, whole and in parts, for key_parts.py:
//
//   key_parts float32|bfloat16 HEADS KEYS PARTS ROUNDS
//
// Prints, per round, the microseconds of processor time that the busier of two threads and then
// `finish` take with whole keys, and the same with PARTS of them.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cpu/attention_entropy_decode.h"

using namespace aero::kernels;
using namespace aero::kernels::cpu;

namespace {

constexpr int64_t kHeadDim = 64, kThreads = 2;
constexpr int kRepetitions = 5;

double processor_us() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

template <class Element>
std::vector<Element> drawn(int64_t count) {
  std::mt19937 generator(7);
  std::normal_distribution<float> normal;
  std::vector<Element> values(static_cast<size_t>(count));
  for (Element& value : values) value = from_real<Element>(normal(generator));
  return values;
}

template <class Element>
struct Call {
  using Pass = DecodePass<Element, float>;
  std::vector<Element> q, k, v, out;
  std::vector<float> rows, partials;
  AttentionEntropyForwardParams p;

  Call(int64_t heads, int64_t keys, int64_t parts)
      : q(drawn<Element>(heads * kHeadDim)),
        k(drawn<Element>(heads * keys * kHeadDim)),
        v(k),
        out(q),
        rows(static_cast<size_t>(5 * heads)),
        partials(static_cast<size_t>(heads * parts * (3 + kHeadDim))) {
    p.batch = 1, p.heads = p.key_heads = heads;
    p.queries = 1, p.keys = keys, p.head_dim = p.value_dim = kHeadDim;
    const Strides query{heads * kHeadDim, kHeadDim, kHeadDim};
    const Strides rows_of_keys{heads * keys * kHeadDim, keys * kHeadDim, kHeadDim};
    p.q = {q.data(), query}, p.out = {out.data(), query};
    p.k = {k.data(), rows_of_keys}, p.v = {v.data(), rows_of_keys};
    p.scale = 0.125;
    p.entropy = rows.data(), p.logsumexp = rows.data() + heads;
    p.statistics = rows.data() + 2 * heads;
    p.key_parts = parts, p.partials = partials.data();
  }

  /// The best of some repetitions in every thread.
  double microseconds() {
    double best[kThreads];
    std::vector<std::thread> threads;
    for (int64_t n = 0; n < kThreads; ++n)
      threads.emplace_back([&, n] {
        alignas(64) float scratch[2 * kHeadDim];
        const int64_t items = Pass::item_count(p);
        for (int i = 0; i < kRepetitions; ++i) {
          const double start = processor_us();
          Pass::run(p, scratch, items * n / kThreads, items * (n + 1) / kThreads);
          const double took = processor_us() - start;
          best[n] = i == 0 ? took : std::min(best[n], took);
        }
      });
    for (std::thread& thread : threads) thread.join();
    const double start = processor_us();
    if (p.key_parts > 1) Pass::finish_parts(p);
    return *std::max_element(best, best + kThreads) + processor_us() - start;
  }
};

template <class Element>
void print_rounds(int64_t heads, int64_t keys, int64_t parts, int rounds) {
  Call<Element> whole(heads, keys, 1), cut(heads, keys, parts);
  for (int i = 0; i < rounds; ++i) {
    const double first = whole.microseconds();
    std::printf("%.2f %.2f\n", first, cut.microseconds());
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) return 1;
  const int64_t heads = std::atoll(arguments[2]), keys = std::atoll(arguments[3]);
  const int64_t parts = std::atoll(arguments[4]);
  const int rounds = std::atoi(arguments[5]);
  if (std::strcmp(arguments[1], "float32") == 0)
    print_rounds<float>(heads, keys, parts, rounds);
  else
    print_rounds<BFloat16>(heads, keys, parts, rounds);
}
