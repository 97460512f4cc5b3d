// For every form of problem cuBLASLt's heuristic is asked once and its first proposal kept, unless
// the caller lets proposals be timed (product_choices.h). The heuristic computes nothing and takes
// no times, so all ranks with equal GPUs and libraries choose the same.
#include "kernels/matmul/matmul_cublaslt.h"

#include "kernels/matmul/cublaslt_choices.h"

namespace ds::kernels::cublaslt {
namespace {

// False when the form is refused.
template <class Problem>
bool queue(const Problem& p, Form f, const GpuStream& on) {
  Plans& plans = plans_of(on);
  Plans::Found found = plans.find(f, kMostWorkspace);
  if (found.plan && found.plan->usable() &&
      found.plan->workspace(found.timing) > p.workspace_bytes) {
    found = plans.find(f, p.workspace_bytes);
  }
  return found.plan && found.plan->run(f, {p.workspace, p.workspace_bytes},
                                       static_cast<cudaStream_t>(on.native), found.timing);
}

std::optional<int64_t> scratch(Form f, const GpuStream& on) {
  const Plans::Found found = plans_of(on).find(f, kMostWorkspace);
  if (!found.plan || !found.plan->usable()) return std::nullopt;
  return found.plan->workspace(found.timing);
}

bool there() { return library_for_products().usable(); }

}  // namespace

Done multiply(const Matmul& p, const GpuStream& on) {
  if (!there() || !sizes_fit(p) || !bias_fits(p)) return Done::kNothing;
  if (activation_fits(p) && queue(p, form_of(p, true, on), on)) return Done::kAll;
  if (!queue(p, form_of(p, false, on), on)) return Done::kNothing;
  return p.activation ? Done::kArguments : Done::kAll;
}

bool multiply_with_sums(const Matmul& p, float* sums, const GpuStream& on) {
  return there() && sizes_fit(p) && sums_fit(p, sums) && queue(p, form_with_sums(p, sums, on), on);
}

bool multiply_times_slope(const Matmul& p, const GpuStream& on) {
  return there() && sizes_fit(p) && slope_fits(p) && queue(p, form_times_slope(p, on), on);
}

std::optional<int64_t> workspace(const Matmul& p, const GpuStream& on, MatmulExtra extra,
                                 const float* sums) {
  if (!there() || !sizes_fit(p) || !bias_fits(p)) return std::nullopt;
  std::optional<int64_t> bytes;
  if (extra == MatmulExtra::kSlope) {
    return slope_fits(p) ? scratch(form_times_slope(p, on), on) : bytes;
  }
  if (extra == MatmulExtra::kSums && sums_fit(p, sums)) {
    bytes = scratch(form_with_sums(p, sums, on), on);
  }
  if (!bytes && activation_fits(p)) bytes = scratch(form_of(p, true, on), on);
  return bytes ? bytes : scratch(form_of(p, false, on), on);
}

bool multiply_fp8(const Fp8Matmul& p, const GpuStream& on) {
  return there() && sizes_fit(p) && codes_fit(p) && queue(p, form_of(p, on), on);
}

std::optional<int64_t> workspace_fp8(const Fp8Matmul& p, const GpuStream& on) {
  if (!there() || !sizes_fit(p) || !codes_fit(p)) return std::nullopt;
  return scratch(form_of(p, on), on);
}

}  // namespace ds::kernels::cublaslt
