// Where a step's arithmetic and time go: operators report to it by module, and it adds them up over
// the module tree. The path of a module is the name of its parameters without the last component.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/timers.h"

namespace ds {

// Arithmetic of an operator. `flops` holds everything, two for each multiply-add.
struct Arithmetic {
  int64_t macs = 0;
  int64_t flops = 0;
  static Arithmetic products(int64_t macs) { return {macs, 2 * macs}; }
  static Arithmetic elementwise(int64_t flops) { return {0, flops}; }
  Arithmetic& operator+=(const Arithmetic& other) {
    macs += other.macs;
    flops += other.flops;
    return *this;
  }
};
inline Arithmetic operator+(Arithmetic a, const Arithmetic& b) { return a += b; }

// Recompute is the forward of activation checkpointing that backward repeats.
enum class ProfilePhase { kForward, kBackward, kRecompute };
inline constexpr size_t kProfilePhases = 3;

struct PhaseTotals {
  int64_t calls = 0;
  Arithmetic work;
  double seconds = 0;
  PhaseTotals& operator+=(const PhaseTotals& other) {
    calls += other.calls;
    work += other.work;
    seconds += other.seconds;
    return *this;
  }
  double flops_per_second() const {
    return seconds > 0 ? static_cast<double>(work.flops) / seconds : 0;
  }
};
using PhaseSums = std::array<PhaseTotals, kProfilePhases>;

// A row of the report. Modules come parents first; the root has no name.
struct ProfiledModule {
  std::string path;
  int depth = 0;
  int parent = -1;                                           // row of the parent, -1 for the root
  int64_t parameters = 0;                                    // with those below
  PhaseSums sums;                                            // with those below
  std::vector<std::pair<std::string, PhaseSums>> operators;  // its own, by first use
};

class ModuleProfile {
 public:
  using Site = size_t;  // an operator of a module

  // The clock is read between operators; on a device that runs ahead it has to wait for it.
  explicit ModuleProfile(ClockFn clock = steady_seconds) : clock_(std::move(clock)) {}

  void add_parameter(std::string_view name, int64_t elements);
  static std::string_view module_of(std::string_view parameter);

  Site site(std::string_view module, const char* op);
  const std::string& module(Site site) const { return sites_[site].module; }

  // Time between begin and end belongs to the site, except for what begins and ends within.
  void begin(Site site, ProfilePhase phase);
  void end();
  void add(Site site, ProfilePhase phase, const Arithmetic& work);

  bool empty() const noexcept { return sites_.empty(); }
  // The tree, every module before those below it, in order of first mention.
  std::vector<ProfiledModule> modules() const;

 private:
  struct SiteSums {
    std::string module;
    std::string op;
    PhaseSums sums;
  };
  void charge(double now);

  ClockFn clock_;
  std::vector<SiteSums> sites_;
  std::map<std::pair<std::string, std::string>, Site> site_of_;
  std::vector<std::pair<std::string, int64_t>> parameters_;  // module, elements
  std::vector<std::pair<Site, ProfilePhase>> open_;
  double mark_ = 0;  // since when the innermost open operator has run
};

// "layers.0.attn" of "layers.0.attn.q"; "" of "wte".
std::string_view parent_module(std::string_view path);

}  // namespace ds
