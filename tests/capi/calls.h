// The table of all functions of ds.h that return a status: how to call each with good arguments,
// and what each parameter is, so that tests can make it a bad one.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "capi/world.h"

namespace capi_test {

enum class ParamKind {
  kHandle,          // must be a live handle of `handle`
  kOptionalHandle,  // the same, or NULL
  kText,            // must not be NULL
  kPointer,         // something else that must not be NULL
  kOut,             // must not be NULL; left alone on failure
};

enum class OutKind { kPlain, kText, kHandle, kDlpack, kDlpackLegacy };

struct Param {
  ParamKind kind;
  const char* name;
  HandleKind handle = HandleKind::kTensor;  // of kHandle and of kOut with OutKind::kHandle
  OutKind out = OutKind::kPlain;
  std::string text = {};  // good value of kText; {dir} stands for the scratch folder
};

// One pointer for each parameter that the row lists.
using Arguments = std::vector<void*>;

struct Call {
  const char* name;
  std::vector<Param> params;
  std::function<ds_status(const Arguments&)> invoke;
  // Brings the world into the state in which the call succeeds, and may replace arguments.
  std::function<void(World&, Arguments&)> prepare = {};
};

const std::vector<Call>& all_calls();

// Good arguments for a call, with memory for its out-parameters.
class PreparedCall {
 public:
  PreparedCall(const Call& call, World& world);
  ~PreparedCall();
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  ds_status invoke() const { return call_.invoke(arguments); }
  // True when no byte of any out-parameter has changed.
  bool outputs_untouched() const;
  // Ends what a successful call gave out.
  void release_outputs();

  Arguments arguments;

 private:
  struct alignas(16) Output {
    std::array<unsigned char, 64> bytes;
  };
  static constexpr unsigned char kCanary = 0xA5;

  const Call& call_;
  World& world_;
  std::vector<std::string> texts_;
  std::vector<Output> outputs_;  // one for each parameter, used by kOut
};

}  // namespace capi_test
