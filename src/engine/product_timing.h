// When the algorithms of matrix products are timed (configuration: /cuda/time_products): in an
// engine's first step, by rank 0, whose choices the others take over.
#pragma once

#include "comm/communicator.h"
#include "ops/context.h"

namespace ds {

class ProductTiming {
 public:
  ProductTiming() = default;
  ~ProductTiming() { close(); }
  ProductTiming(const ProductTiming&) = delete;
  ProductTiming& operator=(const ProductTiming&) = delete;

  // Before the first product of the engine. Nothing where the context does not ask for it.
  void begin(const OpContext& ctx, const Communicator& comm);
  // This step's work is the one that is timed, here or on another rank.
  bool in_first_step() const { return ctx_.device != nullptr; }
  // Collective, after every step; the first ends it. Then all ranks have the choices of rank 0, or,
  // where one of them cannot take them over, the first proposals.
  void finish_step(Communicator& comm);

 private:
  void close() noexcept;
  void share(const OpContext& ctx, Communicator& comm) const;

  OpContext ctx_;  // without a device: nothing is to be done
};

}  // namespace ds
