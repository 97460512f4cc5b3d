// What changes the gradients of the open step. Where they lie in files it may fail half way, and
// leave gradients that nobody may go on with: then the step is given up, as where a backward fails.
#pragma once

#include <functional>

#include "base/system_errors.h"
#include "engine/agreement.h"
#include "engine/run_context.h"

namespace ds {

class StepGuard {
 public:
  StepGuard(RunContext& run, std::function<void()> give_up)
      : run_(run), give_up_(std::move(give_up)) {}

  // Runs `body`. An error of the system in it ends the group, which would wait for this rank.
  template <class Body>
  void run(const Body& body) const {
    try {
      end_group_on_io_error(run_.world(), body);
    } catch (const Error& error) {
      fail_step(error);
    }
  }
  // The same where gradients are written by `body`: they rest when it returns, so that no later
  // call meets an error of it.
  template <class Body>
  void write(const Body& body) const {
    run([&] {
      body();
      run_.state->arrays().flat.gradients.flush();
    });
  }
  // Empty gradients are zeros from here on, and those of all replicas the same.
  void materialize() const {
    write([&] {
      run_.state->gradients().materialize(run_.context());
      run_.state->gradients().reduce_replicas();
    });
  }

  // Throws an error that left the step's gradients in doubt, and the weights as they were.
  [[noreturn]] void fail_step(const Error& error) const {
    if (!run_.state->arrays().factory || !from_system(error.code())) throw error;
    give_up_();
    throw Error(error.code(), str_cat(error.message(), "; the open step is given up"));
  }

 private:
  RunContext& run_;
  const std::function<void()> give_up_;
};

}  // namespace ds
