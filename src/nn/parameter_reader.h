// How operators reach weights: a guard makes one resident for one operator. Whole weights, gathered
// pieces, tiles and quantised forms are readers; no model knows which one it has.
#pragma once

#include <algorithm>
#include <span>

#include "nn/parameter.h"
#include "ops/quantized_linear.h"

namespace ds::nn {

class Fp8Linears;

// How a weight [out, in] is cut of which only a tile at a time shall be resident: tile k has, of
// each of `blocks` blocks of `block_rows` rows, the rows from k * height on, `height` of them or
// what is left of the block.
struct Tiling {
  int64_t count = 0;
  int64_t blocks = 0;
  int64_t block_rows = 0;
  int64_t height = 0;
  // Of each block.
  int64_t rows(int64_t tile) const { return std::min(height, block_rows - tile * height); }
  // Those that a block's part of a tile has of a weight of `all` rows: the last may have fewer.
  struct Rows {
    int64_t begin;
    int64_t count;
  };
  Rows rows_of(int64_t all, int64_t block, int64_t tile) const {
    const int64_t begin = std::min(block * block_rows + tile * height, all);
    return {begin, std::min(rows(tile), all - begin)};
  }
};

class ParameterReader {
 public:
  virtual ~ParameterReader() = default;

  // Makes the parameter resident in the compute type until the matching release.
  virtual Tensor acquire(ParamId id) = 0;
  virtual void release(ParamId id) noexcept = 0;

  // Null: it is acquired whole, and the functions below are not called.
  virtual const Tiling* tiling(ParamId) const { return nullptr; }
  // [blocks * rows(tile), in], block after block; rows that the weight does not have are zeros.
  virtual Tensor acquire_tile(ParamId, int64_t /*tile*/) { return {}; }
  virtual void release_tile(ParamId, int64_t /*tile*/) noexcept {}

  virtual DType compute_type() const = 0;

  // Weights lie where they are for as long as nobody writes them, and acquiring one queues no work:
  // what reads them may be recorded and run again.
  virtual bool stays_in_place() const { return false; }

  // The weight of a linear layer where it is held in codes, until the matching release; else null,
  // and nothing is to be released: then it is acquired.
  virtual const ops::QuantizedWeight* quantized(ParamId) { return nullptr; }

  // Whether every matrix of a product is held in codes.
  virtual bool all_in_codes() const { return false; }

  // The linear layers whose products are of 8-bit codes while a model trains; null: none.
  virtual Fp8Linears* fp8() { return nullptr; }

  // Ranks read the same parameters in the same order, also those that no row needs: acquiring one
  // may be every rank's call. False: what is not needed need not be read.
  virtual bool in_step() const { return true; }
  // Where that is false: these will be read next, in this order.
  virtual void expect(std::span<const ParamId>) {}

  // What is stored: names, global shapes, adapters.
  virtual const ParameterSet& parameters() const = 0;
  // Whether this rank has any of it; what other ranks hold alone cannot be acquired.
  virtual bool holds(ParamId) const { return true; }
  // Of what acquire() gives: this rank's part, where ranks compute a layer together.
  virtual const Shape& shape(ParamId id) const { return parameters()[id].shape; }
};

// Holds one parameter resident for a scope.
class ParameterGuard {
 public:
  ParameterGuard(ParameterReader& reader, ParamId id)
      : reader_(id == kNoParam ? nullptr : &reader),
        id_(id),
        tensor_(id == kNoParam ? Tensor() : reader.acquire(id)) {}
  ~ParameterGuard() {
    if (reader_ != nullptr) reader_->release(id_);
  }
  ParameterGuard(const ParameterGuard&) = delete;
  ParameterGuard& operator=(const ParameterGuard&) = delete;

  const Tensor& operator*() const { return tensor_; }  // empty for kNoParam

 private:
  ParameterReader* reader_;
  ParamId id_;
  Tensor tensor_;
};

// Holds the codes of a weight for a scope, where there are any.
class CodesGuard {
 public:
  CodesGuard(ParameterReader& reader, ParamId id)
      : reader_(reader), id_(id), codes_(reader.quantized(id)) {}
  ~CodesGuard() {
    if (codes_ != nullptr) reader_.release(id_);
  }
  CodesGuard(const CodesGuard&) = delete;
  CodesGuard& operator=(const CodesGuard&) = delete;

  explicit operator bool() const { return codes_ != nullptr; }
  const ops::QuantizedWeight& operator*() const { return *codes_; }

 private:
  ParameterReader& reader_;
  ParamId id_;
  const ops::QuantizedWeight* codes_;
};

}  // namespace ds::nn
