// How close results are to what they should be.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/cpp/kernels/tensors.h"

namespace aero::kernels::testing {

/// By the norm of their difference, over that of `expected`, or of `parts` where those cancel.
inline void expect_close(const std::string& what, const std::vector<double>& actual,
                         const std::vector<double>& expected, double tolerance,
                         const std::vector<double>& parts = {}) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double error = relative_error(actual, expected);
  if (!parts.empty() && error > 0) error *= norm_of(expected) / norm_of(parts);
  EXPECT_LE(error, tolerance) << what;
}

/// One by one, infinities exactly: what rows without a key have would swallow any norm.
inline void expect_each_close(const std::string& what, const std::vector<double>& actual,
                              const std::vector<double>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (std::isinf(expected[i]))
      EXPECT_EQ(actual[i], expected[i]) << what << " of row " << i;
    else
      EXPECT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i])))
          << what << " of row " << i;
  }
}

}  // namespace aero::kernels::testing
