#include "engine/product_timing.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/agreement.h"
#include "ops/product_choices.h"

namespace ds {

// Other ranks only give up what an earlier engine has left on their GPU.
void ProductTiming::begin(const OpContext& ctx, const Communicator& comm) {
  if (!ops::times_products(ctx)) return;
  ctx_ = ctx;
  ops::begin_product_timing(ctx);
  if (comm.rank() != 0) ops::end_product_timing(ctx);
}

void ProductTiming::finish_step(Communicator& comm) {
  if (!in_first_step()) return;
  const OpContext ctx = ctx_;
  close();
  if (comm.size() > 1) share(ctx, comm);
  log_info("engine", "matrix products: ", ops::timed_products(ctx),
           " forms have an algorithm that was timed");
}

void ProductTiming::share(const OpContext& ctx, Communicator& comm) const {
  std::string own;
  if (comm.rank() == 0) own = ops::export_timed_products(ctx);
  const std::string choices = broadcast_text(ctx, comm, own);
  try {
    agree(ctx, comm, "taking over timed products", [&] {
      if (comm.rank() == 0) return;
      const std::string why = ops::import_timed_products(ctx, choices);
      DS_CHECK(why.empty(), Code::kUnsupported, "the choices of rank 0 cannot be used: ", why);
    });
  } catch (const Error& error) {
    if (error.code() != Code::kUnsupported) throw;
    ops::forget_timed_products(ctx);
    log_warning("engine", "time_products: ", error.message(),
                "; all ranks take the first algorithm for every product");
  }
}

void ProductTiming::close() noexcept {
  const OpContext ctx = std::exchange(ctx_, OpContext());
  if (ctx.device == nullptr) return;
  try {
    ops::end_product_timing(ctx);
  } catch (const std::exception& error) {
    log_warning("engine", error.what());
  }
}

}  // namespace ds
