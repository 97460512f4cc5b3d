// The loss scaler against scripted sequences worked out by hand from the rules.
#include "optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace ds::optim {
namespace {

PrecisionConfig fp16(int power, int64_t window, int64_t hysteresis, bool consecutive = false,
                     double least = 1) {
  PrecisionConfig config;
  config.compute = Precision::kFp16;
  config.loss_scale = {0, power, window, hysteresis, consecutive, least};
  return config;
}

PrecisionConfig wrapper(int power, int64_t window, int64_t hysteresis) {
  PrecisionConfig config = fp16(power, window, hysteresis);
  config.loss_scale.wrapper = true;
  return config;
}

struct Script {
  const char* what;
  PrecisionConfig config;
  std::string steps;           // x: overflow, .: clean
  std::vector<double> scales;  // after each step
};

TEST(LossScaler, ScriptedSequences) {
  const std::vector<Script> scripts = {
      {"window 2 from a fresh start: doubles after steps 3, 5, 7",
       fp16(8, 2, 1),
       "........",
       {256, 256, 512, 512, 1024, 1024, 2048, 2048}},
      {"eight overflows from 2^8 reach 1",
       fp16(8, 2, 1),
       "xxxxxxxx",
       {128, 64, 32, 16, 8, 4, 2, 1}},
      {"two overflows, then window + 1 clean steps: one doubling",
       fp16(8, 2, 1),
       "xx...",
       {128, 64, 64, 64, 128}},
      {"the window counts from the last overflow",
       fp16(4, 3, 1),
       "..x....x....",
       {16, 16, 8, 8, 8, 8, 16, 8, 8, 8, 8, 16}},
      {"hysteresis 2: the first overflow is forgiven once",
       fp16(8, 100, 2),
       "x.x.x",
       {256, 256, 128, 128, 64}},
      {"hysteresis 3", fp16(8, 100, 3), "xxxx", {256, 256, 128, 64}},
      {"a doubling restores the hysteresis",
       fp16(8, 2, 2),
       "x...x.x",
       // step 1 forgiven; clean 2, 3, 4 (n = 0, 1, 2) double at 4 and restore; 5 forgiven; 7 halves
       {256, 256, 256, 512, 512, 512, 256}},
      {"consecutive: every clean step restores it",
       fp16(8, 100, 2, true),
       "x.x.xx.",
       {256, 256, 256, 256, 256, 128, 128}},
      {"hysteresis 0: it never falls",
       fp16(8, 3, 0),
       "xxxx....",
       {256, 256, 256, 256, 256, 256, 256, 512}},
      {"the floor is kept", fp16(3, 100, 1, false, 3), "xx", {4, 3}},
      {"the wrapper's rules: no hysteresis, and no end",
       wrapper(16, 2, 2),
       "xx...xx",
       {32768, 16384, 16384, 16384, 32768, 16384, 8192}},
      {"the wrapper's rules at the lower bound", wrapper(1, 100, 2), "xxxx", {1, 1, 1, 1}},
      {"window 1 doubles at every clean step but the first", fp16(0, 1, 1), "....", {1, 2, 4, 8}},
  };
  for (const Script& script : scripts) {
    LossScaler scaler(script.config);
    for (size_t i = 0; i < script.steps.size(); ++i) {
      scaler.update(script.steps[i] == 'x');
      EXPECT_EQ(scaler.scale(), script.scales[i]) << script.what << ", step " << i + 1;
      EXPECT_FALSE(scaler.exhausted()) << script.what;
    }
  }
}

TEST(LossScaler, OverflowAtTheFloorExhaustsIt) {
  LossScaler scaler(fp16(1, 10, 1));
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_FALSE(scaler.exhausted());
  scaler.update(true);
  EXPECT_TRUE(scaler.exhausted());
  EXPECT_EQ(scaler.scale(), 1);
  // With hysteresis the floor is no trouble while overflows are forgiven.
  LossScaler patient(fp16(0, 10, 2));
  patient.update(true);
  EXPECT_FALSE(patient.exhausted());
  patient.update(true);
  EXPECT_TRUE(patient.exhausted());
}

TEST(LossScaler, StaticScalesAndOtherPrecisionsAreConstant) {
  PrecisionConfig config = fp16(8, 1, 1);
  config.loss_scale.loss_scale = 138;
  LossScaler fixed(config);
  EXPECT_FALSE(fixed.dynamic());
  for (int i = 0; i < 10; ++i) fixed.update(i % 2 == 0);
  EXPECT_EQ(fixed.scale(), 138);
  EXPECT_FALSE(fixed.exhausted());
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    config.compute = precision;
    LossScaler none(config);
    none.update(true);
    EXPECT_EQ(none.scale(), 1);
  }
}

TEST(LossScaler, ContinuesWhereItWasSaved) {
  const PrecisionConfig config = fp16(10, 3, 2);
  const std::string steps = "..x...x.x....x..xx.....";
  for (size_t cut = 0; cut <= steps.size(); ++cut) {
    LossScaler whole(config), first(config), second(config);
    for (const char step : steps) whole.update(step == 'x');
    for (size_t i = 0; i < cut; ++i) first.update(steps[i] == 'x');
    second.restore(first.save());
    for (size_t i = cut; i < steps.size(); ++i) second.update(steps[i] == 'x');
    EXPECT_EQ(second.save(), whole.save()) << cut;
  }
  LossScaler spent(fp16(10, 3, 0)), again(fp16(10, 3, 0));
  spent.update(true);
  again.restore(spent.save());
  EXPECT_EQ(again.save(), spent.save());
}

TEST(LossScaler, RefusesStatesThatNoRunLeaves) {
  const Json good = LossScaler(fp16(10, 3, 2)).save();
  const auto code_of = [](const Json& saved) {
    LossScaler scaler(fp16(10, 3, 2));
    try {
      scaler.restore(saved);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  };
  EXPECT_EQ(code_of(good), Code::kOk);
  EXPECT_EQ(code_of(Json()), Code::kCorrupt);
  for (const auto& [key, value] : {std::pair<const char*, Json>{"scale", 0},
                                   {"scale", "big"},
                                   {"hysteresis", "none"},
                                   {"hysteresis", 1.5},
                                   {"iteration", -1},
                                   {"iteration", 1e300},
                                   {"last_overflow", 7},
                                   {"last_overflow", -2}}) {
    Json bad = good;
    bad[key] = value;
    EXPECT_EQ(code_of(bad), Code::kCorrupt) << dump_json(bad);
    bad = good;
    bad.erase(key);
    EXPECT_EQ(code_of(bad), Code::kCorrupt) << dump_json(bad);
  }
}

}  // namespace
}  // namespace ds::optim
