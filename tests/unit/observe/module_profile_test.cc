// The module profile and its report, with operators reported by hand on a clock that the test
// moves.
#include "observe/module_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "observe/profile_report.h"
#include "unit/observe/fake_clock.h"

namespace ds {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr size_t kForward = static_cast<size_t>(ProfilePhase::kForward);
constexpr size_t kBackward = static_cast<size_t>(ProfilePhase::kBackward);
constexpr size_t kRecompute = static_cast<size_t>(ProfilePhase::kRecompute);

const ProfiledModule& row(const std::vector<ProfiledModule>& rows, const std::string& path) {
  for (const ProfiledModule& r : rows) {
    if (r.path == path) return r;
  }
  throw std::runtime_error("no module " + path);
}

TEST(ModuleProfile, PathsComeFromNames) {
  EXPECT_EQ(ModuleProfile::module_of("h.0.attn.c_attn.weight"), "h.0.attn.c_attn");
  EXPECT_EQ(ModuleProfile::module_of("wte"), "");
  EXPECT_EQ(parent_module("h.0"), "h");
  EXPECT_EQ(parent_module("h"), "");
  EXPECT_EQ(parent_module(""), "");
}

TEST(ModuleProfile, TimeIsExclusiveAndTheTreeAddsUp) {
  FakeClock clock;
  ModuleProfile profile(clock.fn());
  profile.add_parameter("a.x.w", 10);
  profile.add_parameter("a.x.b", 1);
  profile.add_parameter("a.y.w", 5);
  profile.add_parameter("top", 2);
  const auto x = profile.site("a.x", "linear"), a = profile.site("a", "attention");
  EXPECT_EQ(profile.site("a.x", "linear"), x);
  EXPECT_EQ(profile.module(a), "a");
  profile.begin(x, ProfilePhase::kForward);
  clock.now += 1;
  profile.end();
  clock.now += 100;  // nobody's
  profile.begin(a, ProfilePhase::kBackward);
  clock.now += 2;
  profile.begin(x, ProfilePhase::kRecompute);
  clock.now += 4;
  profile.end();
  clock.now += 8;
  profile.end();
  EXPECT_THROW(profile.end(), Error);
  profile.add(x, ProfilePhase::kForward, Arithmetic::products(50));
  profile.add(a, ProfilePhase::kForward, Arithmetic::elementwise(7));

  const std::vector<ProfiledModule> rows = profile.modules();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].path, "");
  EXPECT_EQ(rows[0].parameters, 18);
  EXPECT_EQ(row(rows, "a").parameters, 16);
  EXPECT_EQ(row(rows, "a.x").parameters, 11);
  EXPECT_EQ(row(rows, "a.y").parameters, 5);
  EXPECT_EQ(row(rows, "a.x").depth, 2);
  EXPECT_EQ(rows[static_cast<size_t>(row(rows, "a.x").parent)].path, "a");
  EXPECT_DOUBLE_EQ(row(rows, "a.x").sums[kForward].seconds, 1);
  EXPECT_DOUBLE_EQ(row(rows, "a").sums[kBackward].seconds, 10);
  EXPECT_DOUBLE_EQ(row(rows, "a").sums[kRecompute].seconds, 4);
  EXPECT_EQ(rows[0].sums[kForward].work.macs, 50);
  EXPECT_EQ(rows[0].sums[kForward].work.flops, 107);
  EXPECT_DOUBLE_EQ(rows[0].sums[kForward].flops_per_second(), 107);
  EXPECT_EQ(rows[0].sums[kForward].calls, 1);
  ASSERT_EQ(row(rows, "a").operators.size(), 1u);
  EXPECT_EQ(row(rows, "a").operators[0].first, "attention");
}

TEST(ModuleProfile, OddNamesMakeATreeToo) {
  ModuleProfile profile;
  for (const char* name : {".", "..", "a..b.c", ".x", "a.", "", "a..b.d.e"}) {
    profile.add_parameter(name, 1);
  }
  const std::vector<ProfiledModule> rows = profile.modules();
  EXPECT_EQ(rows[0].parameters, 7);
  for (size_t i = 1; i < rows.size(); ++i) {
    ASSERT_GE(rows[i].parent, 0);
    ASSERT_LT(rows[i].parent, static_cast<int>(i));
  }
}

class Report : public ::testing::Test {
 protected:
  Report() {
    for (int layer = 0; layer < 2; ++layer) {
      const std::string path = "h." + std::to_string(layer);
      profile_.add_parameter(path + ".mlp.weight", 3'000'000'000);
      add(path + ".mlp", "linear", int64_t{1'500'000'000} * (layer + 1), 0.25);
      add(path, "attention", 1'000, 0.0005);
    }
    step_.step = 7;
    step_.micro_batch = 4;
    step_.micro_batches = 2;
    step_.samples = 8;
    step_.tokens = 128;
    step_.forward_seconds = 1;
    step_.backward_seconds = 2;
    step_.update_seconds = 1;
  }
  void add(const std::string& module, const char* op, int64_t macs, double seconds) {
    const auto site = profile_.site(module, op);
    for (const ProfilePhase phase : {ProfilePhase::kForward, ProfilePhase::kBackward}) {
      const int64_t times = phase == ProfilePhase::kForward ? 1 : 2;
      profile_.begin(site, phase);
      clock_.now += seconds * static_cast<double>(times);
      profile_.end();
      profile_.add(site, phase, Arithmetic::products(times * macs));
    }
  }
  // The value after a row's name.
  std::string value(const std::string& text, const std::string& name) const {
    const size_t at = text.find("\n" + name);
    if (at == std::string::npos) return "no row " + name;
    const size_t begin = text.find_first_not_of(' ', at + 1 + std::max<size_t>(name.size(), 70));
    const size_t end = text.find('\n', begin);
    const std::string out = text.substr(begin, end - begin);
    return out.substr(0, out.find_last_not_of(' ') + 1);
  }

  FakeClock clock_;
  ModuleProfile profile_{clock_.fn()};
  ProfiledStep step_;
};

TEST_F(Report, SummaryRows) {
  const std::string text = format_profile(profile_, step_, {});
  EXPECT_THAT(text, HasSubstr("Profile Summary at step 7:\n"));
  EXPECT_EQ(value(text, "batch size per GPU:"), "4");
  EXPECT_EQ(value(text, "params per GPU:"), "6.00 B");
  EXPECT_EQ(value(text, "fwd MACs per GPU:"), "4.50 GMACs");
  EXPECT_EQ(value(text, "fwd flops per GPU:"), "9.00 G");
  EXPECT_EQ(value(text, "fwd latency:"), "1.00 s");
  EXPECT_EQ(value(text, "fwd FLOPS per GPU = fwd flops per GPU / fwd latency:"), "9.00 GFLOPS");
  EXPECT_EQ(value(text, "bwd latency:"), "2.00 s");
  EXPECT_EQ(value(text, "bwd FLOPS per GPU"), "9.00 GFLOPS");
  EXPECT_EQ(value(text, "iter latency:"), "4.00 s");
  EXPECT_EQ(value(text, "FLOPS per GPU = all"), "6.75 GFLOPS");
  EXPECT_EQ(value(text, "samples/second:"), "2.00");
  EXPECT_EQ(value(text, "tokens/second:"), "32.00");
}

TEST_F(Report, RecomputeFactorServesWhereNothingWasCounted) {
  ProfileOptions options;
  options.recompute_fwd_factor = 1;
  EXPECT_EQ(value(format_profile(profile_, step_, options), "bwd FLOPS per GPU"), "13.50 GFLOPS");
  const auto site = profile_.site("h.0", "attention");
  profile_.add(site, ProfilePhase::kRecompute, Arithmetic::products(1'000'000'000));
  const std::string text = format_profile(profile_, step_, options);
  EXPECT_EQ(value(text, "recomputed flops per GPU:"), "2.00 G");
  EXPECT_EQ(value(text, "bwd FLOPS per GPU"), "10.00 GFLOPS");
}

TEST_F(Report, TopModulesByDepthSumModulesOfOneKind) {
  ProfileOptions options;
  const std::string text = format_profile(profile_, step_, options);
  EXPECT_THAT(text, HasSubstr("depth 2:\n    params      - h.*: 6.00 B\n"));
  EXPECT_THAT(text, HasSubstr("depth 3:\n    params      - h.*.mlp: 6.00 B\n"
                              "    MACs        - h.*.mlp: 4.50 GMACs\n"
                              "    fwd latency - h.*.mlp: 500.00 ms\n"));
  options.module_depth = 1;
  const std::string shallow = format_profile(profile_, step_, options);
  EXPECT_THAT(shallow, HasSubstr("depth 1:\n"));
  EXPECT_THAT(shallow, Not(HasSubstr("depth 2:\n")));
  EXPECT_THAT(shallow, Not(HasSubstr("mlp")));
  options.detailed = false;
  EXPECT_THAT(format_profile(profile_, step_, options), Not(HasSubstr("Detailed")));
}

TEST_F(Report, TreeHasSharesAndOperators) {
  const std::string text = format_profile(profile_, step_, {});
  const size_t at = text.find("\n    0 ");
  ASSERT_NE(at, std::string::npos) << text;
  const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  EXPECT_THAT(line, HasSubstr("3.00 B 50.00%"));
  EXPECT_THAT(line, HasSubstr("1.50 GMACs 33.33%"));
  EXPECT_THAT(line, ::testing::EndsWith("attention"));
}

TEST_F(Report, JsonHoldsTheSameNumbers) {
  const Json json = profile_json(profile_, step_, {});
  EXPECT_EQ(json.at("step"), 7);
  EXPECT_EQ(json.at("seconds").at("total"), 4.0);
  EXPECT_EQ(json.at("totals").at("forward").at("macs"), 4'500'002'000);
  EXPECT_EQ(json.at("totals").at("backward").at("flops"), 18'000'008'000);
  EXPECT_EQ(json.at("totals").at("parameters"), 6'000'000'000);
  ASSERT_EQ(json.at("modules").size(), 6u);
  EXPECT_EQ(json.at("modules")[0].at("path"), "");
  int64_t own = 0;
  for (const Json& module : json.at("modules")) {
    for (const Json& op : module.at("operators"))
      own += op.at("forward").at("flops").get<int64_t>();
  }
  EXPECT_EQ(own, json.at("totals").at("forward").at("flops").get<int64_t>());
}

TEST(EmptyReport, AnEmptyProfileIsAReportToo) {
  const ModuleProfile profile;
  EXPECT_THAT(format_profile(profile, {}, {}), HasSubstr("fwd flops per GPU:"));
  EXPECT_EQ(profile_json(profile, {}, {}).at("modules").size(), 1u);
}

TEST(Amounts, UnitsAndDurations) {
  EXPECT_EQ(format_amount(999), "999.00 ");
  EXPECT_EQ(format_amount(1000), "1.00 K");
  EXPECT_EQ(format_amount(1.235e6), "1.24 M");
  EXPECT_EQ(format_amount(2e9), "2.00 G");
  EXPECT_EQ(format_amount(2e9, 'B'), "2.00 B");
  EXPECT_EQ(format_amount(3.5e15), "3500.00 T");
  EXPECT_EQ(format_duration(1.5), "1.50 s");
  EXPECT_EQ(format_duration(0.0015), "1.50 ms");
  EXPECT_EQ(format_duration(1.5e-6), "1.50 us");
}

}  // namespace
}  // namespace ds
