#include "csrc/mpc/profiles.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <variant>

#include "csrc/spec/nearest_word.h"

namespace aero::mpc {
namespace {

using spec::FieldValue;

template <class Profile>
struct Field {
  std::string_view name;
  std::variant<bool Profile::*, std::int64_t Profile::*, double Profile::*> member;
  double smallest = 0;  // of numbers
  double largest = 0;
};

// From 1 kbit/s to 1 Tbit/s, waits of up to an hour: beyond lie typing errors.
constexpr std::array kNetworkFields{
    Field<NetworkProfile>{"uplink_mbps", &NetworkProfile::uplink_mbps, 1e-3, 1e6},
    Field<NetworkProfile>{"downlink_mbps", &NetworkProfile::downlink_mbps, 1e-3, 1e6},
    Field<NetworkProfile>{"round_trip_seconds", &NetworkProfile::round_trip_seconds, 0, 3600},
    Field<NetworkProfile>{"software_seconds", &NetworkProfile::software_seconds, 0, 3600},
    Field<NetworkProfile>{"full_duplex", &NetworkProfile::full_duplex},
};

constexpr std::array kComputeFields{
    Field<ComputeProfile>{"threads", &ComputeProfile::threads, 1, 4096},
    Field<ComputeProfile>{"ct_pt_product_seconds", &ComputeProfile::ct_pt_product_seconds, 0, 60},
    Field<ComputeProfile>{"embedding_product_seconds", &ComputeProfile::embedding_product_seconds,
                          0, 60},
    Field<ComputeProfile>{"plaintext_encoding_seconds", &ComputeProfile::plaintext_encoding_seconds,
                          0, 60},
    Field<ComputeProfile>{"automorphism_seconds", &ComputeProfile::automorphism_seconds, 0, 60},
    Field<ComputeProfile>{"elementwise_ciphertext_seconds",
                          &ComputeProfile::elementwise_ciphertext_seconds, 0, 60},
    Field<ComputeProfile>{"ot_seconds", &ComputeProfile::ot_seconds, 0, 60},
    Field<ComputeProfile>{"share_byte_seconds", &ComputeProfile::share_byte_seconds, 0, 60},
    Field<ComputeProfile>{"ring_product_seconds", &ComputeProfile::ring_product_seconds, 0, 60},
    Field<ComputeProfile>{"client_slowdown", &ComputeProfile::client_slowdown, 1e-3, 1e3},
};

template <class Profile>
struct Named {
  std::string_view name;
  Profile profile;
  std::string_view source;
};

constexpr std::array kNetworks{
    Named<NetworkProfile>{"paper-testbed",
                          {},
                          "fitted to the 27 latencies of Tables 4-7 (version 2) together with the "
                          "compute profile of that name"},
    Named<NetworkProfile>{"lan-1gbps",
                          {1000, 1000, 0.5e-3, 0, true},
                          "assumed: a wire of 1 Gbit/s and 0.5 ms, without software"},
    Named<NetworkProfile>{"wan-400mbps",
                          {400, 400, 4e-3, 0, true},
                          "assumed: a wire of 400 Mbit/s and 4 ms, without software"},
    Named<NetworkProfile>{
        "wan-100mbps",
        {100, 100, 80e-3, 0, true},
        "stated by the paper, 100 Mbit/s and 80 ms; without software. Its minutes "
        "cannot come from it"},
};

// `spu-epyc`: CPU seconds that SPU 0.9.5 takes for both parties, by least squares over ten
// operations (mean error 8 %, worst 18 %; benchmarks/results/spu_rates_amd_epyc_202611.md), on
// AMD EPYC (Zen 5) at 2.6 GHz. Spread over threads without any loss. The two rates of protocols
// without ciphertexts are of a busy AMD EPYC (Zen 4), over 18 lines of SEMI2K and ABY3 (mean error
// 23 %, worst 75 %; benchmarks/results/share_rates_amd_epyc_202611.md).
constexpr ComputeProfile kSpuEpyc{.ct_pt_product_seconds = 583e-6,
                                  .embedding_product_seconds = 583e-6,
                                  .automorphism_seconds = 2.14e-3,
                                  .elementwise_ciphertext_seconds = 7.61e-3,
                                  .ot_seconds = 74.6e-9,
                                  .share_byte_seconds = 8.46e-9,
                                  .ring_product_seconds = 1.209e-9};

constexpr std::array kComputers{
    Named<ComputeProfile>{"paper-testbed",
                          {},
                          "fitted to the 27 latencies of Tables 4-7 (version 2) together with the "
                          "network of that name"},
    Named<ComputeProfile>{"spu-epyc", kSpuEpyc,
                          "measured: SPU 0.9.5 on one core of an AMD EPYC (Zen 5), ten operations "
                          "to 18 %, those on shares alone (Zen 4) to 75 %, 23 % in the mean; "
                          "threads share work without loss, which is assumed"},
    Named<ComputeProfile>{
        "none", {32, 0, 0, 0, 0, 0, 0, 0, 0, 1}, "assumed: computing takes no time"},
};

template <class Entries>
const auto& find_profile(const Entries& entries, std::string_view what, std::string_view name) {
  for (const auto& entry : entries)
    if (entry.name == name) return entry;
  throw std::invalid_argument("latency: " + std::string(what) + " must be " +
                              spec::quoted_list(spec::names_of(entries)) + ", got " +
                              spec::quoted(name));
}

template <class Profile>
[[noreturn]] void fail(const Field<Profile>& field, const std::string& expected,
                       const FieldValue& value) {
  throw std::invalid_argument("latency: " + std::string(field.name) + " must be " + expected +
                              ", got " + spec::shown(value));
}

template <class Profile>
void set_field(Profile& profile, const Field<Profile>& field, const FieldValue& value) {
  const auto range = [&] {
    return " from " + spec::shown(field.smallest) + " to " + spec::shown(field.largest);
  };
  const auto inside = [&](auto number) {
    const auto real = static_cast<double>(number);
    return real >= field.smallest && real <= field.largest;
  };
  std::visit(
      [&](auto member) {
        using Content = std::decay_t<decltype(profile.*member)>;
        const auto* flag = std::get_if<bool>(&value);
        const auto* integer = std::get_if<std::int64_t>(&value);
        const auto* real = std::get_if<double>(&value);
        if constexpr (std::is_same_v<Content, bool>) {
          if (flag == nullptr) fail(field, "True or False", value);
          profile.*member = *flag;
        } else if constexpr (std::is_same_v<Content, std::int64_t>) {
          if (integer == nullptr || !inside(*integer)) fail(field, "an integer" + range(), value);
          profile.*member = *integer;
        } else {
          const bool number = integer != nullptr ? inside(*integer) : real && inside(*real);
          if (!number) fail(field, "a number" + range(), value);
          profile.*member = integer != nullptr ? static_cast<double>(*integer) : *real;
        }
      },
      field.member);
}

template <class Profile, class Fields>
spec::FieldValues values_of(const Profile& profile, const Fields& fields) {
  spec::FieldValues values;
  for (const auto& field : fields)
    std::visit([&](auto member) { values.emplace_back(field.name, profile.*member); },
               field.member);
  return values;
}

template <class Profile, class Fields>
Profile changed(Profile profile, const Fields& fields, std::string_view what,
                const spec::FieldValues& values) {
  for (const auto& [name, value] : values) {
    const auto* field =
        std::find_if(fields.begin(), fields.end(), [&](const auto& f) { return f.name == name; });
    if (field == fields.end())
      throw std::invalid_argument(
          "latency: " + std::string(what) + " has no field " + spec::quoted(name) +
          "; did you mean " + spec::quoted(spec::nearest_word(name, spec::names_of(fields))) + "?");
    set_field(profile, *field, value);
  }
  return profile;
}

}  // namespace

std::vector<std::string_view> network_names() { return spec::names_of(kNetworks); }

std::vector<std::string_view> compute_names() { return spec::names_of(kComputers); }

NetworkProfile network_profile(std::string_view name) {
  return find_profile(kNetworks, "network", name).profile;
}

ComputeProfile compute_profile(std::string_view name) {
  return find_profile(kComputers, "compute", name).profile;
}

std::string_view network_source(std::string_view name) {
  return find_profile(kNetworks, "network", name).source;
}

std::string_view compute_source(std::string_view name) {
  return find_profile(kComputers, "compute", name).source;
}

spec::FieldValues field_values(const NetworkProfile& network) {
  return values_of(network, kNetworkFields);
}

spec::FieldValues field_values(const ComputeProfile& compute) {
  return values_of(compute, kComputeFields);
}

NetworkProfile with_fields(NetworkProfile network, const spec::FieldValues& values) {
  return changed(network, kNetworkFields, "a network", values);
}

ComputeProfile with_fields(ComputeProfile compute, const spec::FieldValues& values) {
  return changed(compute, kComputeFields, "a compute profile", values);
}

}  // namespace aero::mpc
