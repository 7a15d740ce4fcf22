#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "tests/cpp/kernels/closeness.h"
#include "tests/cpp/kernels/run_kernel.h"
#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const std::vector<DataType> kDataTypes = {DataType::kFloat32, DataType::kBFloat16,
                                          DataType::kFloat16, DataType::kFloat64};

/// Rows of logits, every third of which does not count.
struct Problem {
  Problem(DataType data_type, int64_t row_count, int64_t class_count,
          Order order = Order::kHeadMajor, double deviation = 3)
      : type(data_type),
        rows(row_count),
        classes(class_count),
        logits(type, 1, 1, rows, classes, order),
        losses(statistic_type(type), 1, 1, rows, 1),
        factors(losses),
        dlogits(logits),
        targets(static_cast<size_t>(rows)) {
    std::mt19937 generator(29);
    logits.fill_normal(generator, deviation);
    factors.fill_normal(generator);
    for (size_t i = 0; i < targets.size(); ++i)
      targets[i] = i % 3 == 1 || classes == 0
                       ? -100
                       : static_cast<int64_t>(generator() % static_cast<unsigned>(classes));
  }

  CrossEntropyParams params(bool has_gradient) {
    CrossEntropyParams p;
    p.data_type = type;
    p.rows = rows, p.classes = classes;
    p.logits = logits;
    p.targets = targets.data();
    p.losses = losses.data();
    if (!has_gradient) return p;
    p.factors = factors.data();
    p.dlogits = dlogits;
    return p;
  }

  DataType type;
  int64_t rows, classes;
  Tensor logits, losses, factors, dlogits;
  Buffer<int64_t> targets;
};

/// The definitions in double.
struct Reference {
  std::vector<double> losses, dlogits;

  explicit Reference(const Problem& p) {
    for (int64_t i = 0; i < p.rows; ++i) {
      const int64_t target = p.targets[static_cast<size_t>(i)];
      double top = -kInfinity, sum = 0;
      for (int64_t j = 0; j < p.classes; ++j) top = std::max(top, p.logits.get(0, 0, i, j));
      for (int64_t j = 0; j < p.classes; ++j) sum += std::exp(p.logits.get(0, 0, i, j) - top);
      const double loss = target < 0 ? 0 : std::log(sum) + top - p.logits.get(0, 0, i, target);
      losses.push_back(loss);
      for (int64_t j = 0; j < p.classes; ++j) {
        const double weight = std::exp(p.logits.get(0, 0, i, j) - top) / sum;
        const double slope = j == target ? std::expm1(-loss) : weight;
        dlogits.push_back(target < 0 ? 0 : slope * p.factors.get(0, 0, i));
      }
    }
  }
};

void expect_solved(Problem& p) {
  SCOPED_TRACE(std::string(name_of(p.type)) + " N=" + std::to_string(p.rows) +
               " V=" + std::to_string(p.classes) + " isa=" + cpu::isa_name());
  const Reference r(p);
  const double fine = p.type == DataType::kFloat64 ? 1e-13 : 1e-6;
  const double coarse = p.type == DataType::kBFloat16  ? 0x1p-8
                        : p.type == DataType::kFloat16 ? 0x1p-10
                                                       : fine;
  run_kernel(p.params(false), 3);
  expect_each_close("losses alone", p.losses.values(), r.losses, fine);
  p.losses.fill(-1);
  run_kernel(p.params(true), 3);
  expect_each_close("losses", p.losses.values(), r.losses, fine);
  expect_close("dlogits", p.dlogits.values(), r.dlogits, coarse, p.factors.values());
  // In the place of the logits, by the same operations.
  CrossEntropyParams in_place = p.params(true);
  in_place.dlogits = p.logits;
  run_kernel(in_place, 3);
  EXPECT_EQ(p.logits.values(), p.dlogits.values());
}

/// Every test runs once for each instruction set this machine has.
class CrossEntropy : public ::testing::TestWithParam<std::string> {
 protected:
  ScopedIsa isa_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Isa, CrossEntropy, ::testing::ValuesIn(cpu::available_isa_names()),
                         [](const auto& info) { return info.param; });

TEST_P(CrossEntropy, AgreesWithTheDefinitionsOverAwkwardSizes) {
  for (const DataType type : kDataTypes)
    for (const int64_t rows : {0, 1, 2, 13})
      for (const int64_t classes : {0, 1, 2, 15, 16, 17, 31, 64, 67, 130, 1000})
        for (const Order order : {Order::kHeadMajor, Order::kPadded}) {
          Problem p(type, rows, classes, order);
          expect_solved(p);
        }
}

TEST_P(CrossEntropy, TouchesNothingBesideItsTensors) {
  for (const Placement placement : {Placement::kBeforeForbidden, Placement::kAfterForbidden}) {
    const ScopedPlacement placed(placement);
    for (const DataType type : kDataTypes)
      for (const int64_t classes : {1, 15, 33, 100}) {
        Problem p(type, 4, classes);
        expect_solved(p);
      }
  }
}

TEST_P(CrossEntropy, KeepsItsDigitsWhereTheTargetIsNearlyCertain) {
  for (const DataType type : kDataTypes) {
    Problem p(type, 7, 33);
    for (int64_t i = 0; i < p.rows; ++i)
      if (const int64_t target = p.targets[static_cast<size_t>(i)]; target >= 0)
        p.logits.set(0, 0, i, target, 14 + static_cast<double>(i));
    const Reference r(p);
    run_kernel(p.params(true), 2);
    for (int64_t i = 0; i < p.rows; ++i) {
      const int64_t target = p.targets[static_cast<size_t>(i)];
      if (target < 0) continue;
      const double expected = r.dlogits[static_cast<size_t>(i * p.classes + target)];
      // The sum of exponentials is rounded near 1, and so is P - 1, but not P to 8 bits.
      const double fine = type == DataType::kFloat64 ? 4e-15 : 3e-7;
      const double coarse = element_bytes(type) == 2 ? 0x1p-8 : 0;
      const double tolerance =
          fine * std::abs(p.factors.get(0, 0, i)) + coarse * std::abs(expected);
      EXPECT_NEAR(p.dlogits.get(0, 0, i, target), expected, tolerance) << i;
    }
  }
}

TEST_P(CrossEntropy, TakesHugeLogitsAndClassesThatCannotBe) {
  for (const DataType type : kDataTypes) {
    Problem p(type, 6, 40, Order::kHeadMajor, 300);
    for (int64_t i = 0; i < p.rows; ++i)
      for (int64_t j = 0; j < p.classes; j += 3)
        if (j != p.targets[static_cast<size_t>(i)]) p.logits.set(0, 0, i, j, -kInfinity);
    expect_solved(p);
  }
}

TEST_P(CrossEntropy, IsNanInARowWithNanOrPlusInfinityAndNowhereElse) {
  for (const DataType type : kDataTypes)
    for (const double value : {std::nan(""), kInfinity})
      for (const int64_t at : {0, 20, 66}) {
        Problem p(type, 5, 67);
        for (const int64_t row : {1, 2}) p.logits.set(0, 0, row, at, value);  // 1 does not count
        run_kernel(p.params(true), 2);
        for (int64_t i = 0; i < p.rows; ++i) {
          EXPECT_EQ(std::isnan(p.losses.get(0, 0, i)), i == 2) << i;
          for (int64_t j = 0; j < p.classes; ++j)
            EXPECT_EQ(std::isnan(p.dlogits.get(0, 0, i, j)), i == 2) << i << " " << j;
        }
      }
}

TEST_P(CrossEntropy, DoesNotDependOnTheNumberOfThreads) {
  Problem p(DataType::kFloat32, 29, 131);
  run_kernel(p.params(true), 1);
  const std::vector<double> losses = p.losses.values(), dlogits = p.dlogits.values();
  run_kernel_at_once(p.params(true), 7);
  EXPECT_EQ(p.losses.values(), losses);
  EXPECT_EQ(p.dlogits.values(), dlogits);
}

}  // namespace
}  // namespace aero::kernels::testing
