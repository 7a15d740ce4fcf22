#include "csrc/mpc/profiles.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace aero::mpc {
namespace {

using spec::FieldValue;

template <class Profile>
std::string error_of(const spec::FieldValues& values) {
  try {
    with_fields(Profile{}, values);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Profiles, DefaultsAreThePapersTestBed) {
  EXPECT_EQ(network_profile("paper-testbed"), NetworkProfile{});
  EXPECT_EQ(compute_profile("paper-testbed"), ComputeProfile{});
}

TEST(Profiles, FieldsReadWhatWithFieldsWrote) {
  for (const auto name : network_names())
    EXPECT_EQ(with_fields(NetworkProfile{}, field_values(network_profile(name))),
              network_profile(name));
  for (const auto name : compute_names())
    EXPECT_EQ(with_fields(ComputeProfile{}, field_values(compute_profile(name))),
              compute_profile(name));
}

TEST(Profiles, IntegersAreNumbers) {
  const NetworkProfile network =
      with_fields(NetworkProfile{}, {{"uplink_mbps", FieldValue{std::int64_t{20}}}});
  EXPECT_EQ(network.uplink_mbps, 20.0);
}

TEST(Profiles, ErrorsNameTheFieldAndItsRange) {
  EXPECT_EQ(error_of<NetworkProfile>({{"uplink_mbps", FieldValue{-1.0}}}),
            "latency: uplink_mbps must be a number from 0.001 to 1e+06, got -1");
  EXPECT_NE(error_of<NetworkProfile>({{"downlink_mbps", FieldValue{std::nan("")}}}), "");
  EXPECT_NE(error_of<NetworkProfile>(
                {{"round_trip_seconds", FieldValue{std::numeric_limits<double>::infinity()}}}),
            "");
  EXPECT_EQ(error_of<NetworkProfile>({{"full_duplex", FieldValue{std::int64_t{1}}}}),
            "latency: full_duplex must be True or False, got 1");
  EXPECT_NE(error_of<NetworkProfile>({{"software", FieldValue{0.1}}}).find("software_seconds"),
            std::string::npos);
  EXPECT_EQ(error_of<ComputeProfile>({{"threads", FieldValue{std::int64_t{0}}}}),
            "latency: threads must be an integer from 1 to 4096, got 0");
  EXPECT_NE(error_of<ComputeProfile>({{"threads", FieldValue{1.5}}}), "");
  EXPECT_NE(error_of<ComputeProfile>({{"ot_seconds", FieldValue{true}}}), "");
}

TEST(Profiles, UnknownNamesListTheKnownOnes) {
  try {
    network_profile("wan");
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("\"wan-400mbps\""), std::string::npos);
  }
  EXPECT_THROW(compute_profile("gpu"), std::invalid_argument);
}

}  // namespace
}  // namespace aero::mpc
