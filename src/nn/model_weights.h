// What the users of a model need of its weights, whoever holds them: the model itself (HeldWeights)
// or what an engine has made of them (zero::TrainState).
#pragma once

#include <functional>
#include <memory>

#include "nn/borrowed_memory.h"
#include "nn/parameter_reader.h"
#include "nn/weight_loader.h"
#include "ops/context.h"

namespace ds::nn {

// fp32 weights over the flat order of their parameters, as they go from one holder to the next.
// Copies share the array.
struct WholeWeights {
  explicit WholeWeights(const ParameterSet& parameters) : borrowed(parameters) {}

  std::shared_ptr<const WeightLoader> loader;  // makes them when somebody needs them; then null
  Tensor array;                                // empty while the loader stands
  // The array lies in this memory, though operators run on a GPU: it moves when one reads it.
  std::shared_ptr<Device> host;
  BorrowedMemory borrowed;
  bool lost = false;  // ranks had pieces of them, and nobody has them whole
};

[[noreturn]] inline void fail_lost() {
  fail(Code::kState,
       "the weights were spread over ranks by an engine that is gone; open the model again, or "
       "make it anew and load a checkpoint");
}

// How many elements are read at a time where a parameter comes in parts: whole units.
int64_t part_elements(int64_t unit);

class ModelWeights {
 public:
  virtual ~ModelWeights() = default;

  // Makes weights that do not exist yet; nothing where they do.
  virtual void make(const OpContext& ctx) = 0;
  // As operators read them; after make().
  virtual ParameterReader& reader() = 0;
  virtual void check_not_lost() const = 0;

  // The master of a parameter, fp32: a view where it lies so, else a copy, also of one that is not
  // made yet. Every rank's call where weights are spread over ranks. Setting one sets what follows
  // from it.
  virtual Tensor read(const OpContext& ctx, ParamId id) const = 0;
  virtual void write(const OpContext& ctx, ParamId id, const Tensor& value) = 0;
  // Whether the last write failed after it may have begun: some of the value is there, or of what
  // follows from it.
  virtual bool half_written() const { return false; }
  // The same numbers as read() in consecutive parts, which go through little memory where they do
  // not lie in it: take(part, begin) gets flat fp32 in whole `unit`s of elements. By default there
  // is one part.
  using PartTaker = std::function<void(const Tensor& part, int64_t begin)>;
  virtual void read_in_parts(const OpContext& ctx, ParamId id, int64_t unit,
                             const PartTaker& take) const;

  // Each parameter lies whole in memory here, where view() shows it as it is computed with; and
  // whether that is its master, which a program may write there.
  virtual bool whole() const = 0;
  virtual Tensor view(const OpContext& ctx, ParamId id) = 0;
  virtual bool computes_with_master(ParamId id) const = 0;

  // Memory of the program that receives each new value of a parameter.
  virtual BorrowedMemory& borrowed() = 0;
  // Of ranks that share the weights the first alone writes files of them.
  virtual bool writes_files() const = 0;

  // Ends whatever was made of them, without waiting for other ranks. Nothing is left here; when it
  // throws (it may need memory), everything is.
  virtual WholeWeights take(const OpContext& ctx) = 0;
};

}  // namespace ds::nn
