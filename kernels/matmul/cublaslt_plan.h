// How cuBLASLt multiplies one form of product: its descriptions, made once, and the algorithm.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/matmul/cublaslt_form.h"
#include "kernels/matmul/cublaslt_library.h"

namespace ds::kernels::cublaslt {

class Plan {
 public:
  // Asks for up to `most` proposals, best first, for a form whose key says all: its pointers are
  // for products that follow. The handle's GPU is current, here and below. A form that is refused
  // is unusable; the log tells why. Throws where cuBLASLt fails otherwise.
  Plan(const Library& lib, cublasLtHandle_t handle, const Form& form, int most);

  bool usable() const { return needs_.load(std::memory_order_relaxed) >= 0; }
  bool timed() const { return timed_.load(std::memory_order_relaxed); }
  // The scratch for a product. `timing`: proposals would be timed by it, unless they have been.
  int64_t workspace(bool timing) const {
    return timing && !timed() ? most_workspace_ : needs_.load(std::memory_order_relaxed);
  }

  struct Scratch {
    void* memory = nullptr;
    int64_t bytes = 0;
  };
  // Queues a product of the form. `timing`: if the proposals were not timed yet and the stream does
  // not record, they are run and timed now, so the host waits. False when cuBLASLt refuses the
  // form, which is logged once and not tried again.
  bool run(const Form& form, const Scratch& scratch, cudaStream_t stream, bool timing);

  // What another process has timed: proposal number `index`, which needs so much scratch. False
  // when there is none like it.
  bool choose(int64_t index, int64_t workspace);
  struct Choice {
    int64_t index = 0, workspace = 0;
  };
  Choice choice() const;

 private:
  template <class Opaque>
  using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;
  struct Proposal {
    cublasLtMatmulAlgo_t algorithm{};
    int64_t workspace = 0;
  };
  void describe(const Form& form);
  void ask(int most);
  void point(const Form& form);
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value);
  cublasStatus_t queue(const Proposal& proposal, const Form& form, const Scratch& scratch,
                       cudaStream_t stream) const;
  void time(const Form& form, const Scratch& scratch, cudaStream_t stream);
  void keep(size_t index);
  void refuse(const char* what, cublasStatus_t status, bool expected);

  const Library& lib_;
  const cublasLtHandle_t handle_;
  const Key key_;
  mutable std::mutex mutex_;  // one product at a time: its pointers are in the description
  Owned<cublasLtMatmulDescOpaque_t> operation_;
  Owned<cublasLtMatrixLayoutOpaque_t> first_, second_, before_, to_;
  // Which the description has now.
  const void* vector_ = nullptr;
  void* aux_ = nullptr;
  const float *a_scale_ = nullptr, *b_scale_ = nullptr;
  std::vector<Proposal> proposals_;
  size_t chosen_ = 0;
  int64_t most_workspace_ = 0;       // of all proposals
  std::atomic<int64_t> needs_ = -1;  // that of the chosen one; less than 0: the form is unusable
  std::atomic<bool> timed_ = false;
};

}  // namespace ds::kernels::cublaslt
