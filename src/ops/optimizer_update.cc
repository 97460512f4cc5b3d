// Checks and launch of optimizer updates.
#include "ops/optimizer_update.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "ops/checks.h"
#include "tensor/transfer.h"

namespace ds::ops {
namespace {

constexpr const char* kOp = "optimizer update";

kernels::NumberKind number_kind(const Tensor& tensor, const char* name) {
  switch (tensor.dtype()) {
    case DType::kFloat32:
      return kernels::NumberKind::kFp32;
    case DType::kBFloat16:
      return kernels::NumberKind::kBf16;
    case DType::kFloat16:
      return kernels::NumberKind::kFp16;
    default:
      fail(Code::kInvalidArgument, kOp, ": ", name, " must be float32, bfloat16 or float16, not ",
           dtype_name(tensor.dtype()));
  }
}

kernels::StateArray state_array(const StateTensor& state) {
  DS_CHECK(state.data && state.data.contiguous(), Code::kInvalidArgument, kOp,
           ": a state is missing or not contiguous");
  kernels::StateArray out;
  out.data = state.data.raw();
  switch (state.data.dtype()) {
    case DType::kFloat32:
      out.kind = kernels::StateKind::kFp32;
      return out;
    case DType::kBFloat16:
      out.kind = kernels::StateKind::kBf16;
      return out;
    case DType::kInt8:
      out.kind = kernels::StateKind::kInt8;
      break;
    case DType::kUInt8:
      out.kind = kernels::StateKind::kUInt8;
      break;
    default:
      fail(Code::kInvalidArgument, kOp, ": a state must be float32, bfloat16, int8 or uint8, not ",
           dtype_name(state.data.dtype()));
  }
  const int64_t blocks = (state.data.elements() + kernels::kStateBlock - 1) / kernels::kStateBlock;
  DS_CHECK(state.scales, Code::kInvalidArgument, kOp, ": scales is missing");
  DS_CHECK(state.scales.contiguous() && state.scales.elements() == blocks, Code::kInvalidArgument,
           kOp, ": scales must have ", blocks, " elements");
  out.scales = state.scales.data<float>();
  return out;
}

void check_constants(const kernels::UpdateConstants& c) {
  for (const float value :
       {c.grad_scale, c.beta1, c.one_minus_beta1, c.beta2, c.one_minus_beta2, c.root_scale, c.eps,
        c.step_size, c.grad_step, c.coupled_decay, c.decoupled_decay}) {
    DS_CHECK(std::isfinite(value), Code::kInvalidArgument, kOp,
             ": a hyperparameter is not finite or too large for fp32");
  }
}

// Pieces in order, inside the run and each within one chunk, so that the kernel may trust them.
void check_pieces(const UpdateWork& work, int64_t n) {
  const int64_t chunks = (n + kernels::kUpdateChunk - 1) / kernels::kUpdateChunk;
  const auto count = static_cast<int64_t>(work.pieces.size());
  DS_CHECK(static_cast<int64_t>(work.first.size()) == chunks + 1 && work.first.front() == 0 &&
               work.first.back() == count,
           Code::kInternal, kOp, ": the chunks do not cover the pieces");
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const auto c = static_cast<size_t>(chunk);
    DS_CHECK(work.first[c] <= work.first[c + 1], Code::kInternal, kOp, ": chunks out of order");
    int64_t at = chunk * kernels::kUpdateChunk;
    const int64_t stop = std::min(n, at + kernels::kUpdateChunk);
    for (int64_t k = work.first[c]; k < work.first[c + 1]; ++k) {
      const kernels::UpdatePiece& piece = work.pieces[static_cast<size_t>(k)];
      DS_CHECK(piece.begin >= at && piece.end > piece.begin && piece.end <= stop &&
                   piece.hyper >= 0 && piece.hyper < static_cast<int64_t>(work.constants.size()),
               Code::kInternal, kOp, ": a piece is out of place");
      at = piece.end;
    }
  }
}

// The bytes of host numbers in a tensor on the device, which is there when this returns.
template <class T>
Tensor uploaded(const std::shared_ptr<Device>& device, std::span<const T> from, DType dtype,
                MemoryTag tag) {
  const auto bytes = static_cast<int64_t>(from.size_bytes());
  Tensor to = Tensor::empty(device, dtype, {bytes / dtype_size(dtype)}, tag);
  copy_from_host(from.data(), to);
  return to;
}

void update_on_gpu(const OpContext& ctx, kernels::UpdateRule rule, const UpdateWork& work,
                   kernels::UpdateArrays arrays) {
  UpdateTables made;
  const UpdateTables* tables = work.tables;
  if (tables == nullptr) {
    made = make_update_tables(ctx.device, work.pieces, work.first);
    tables = &made;
  }
  std::span<const kernels::UpdateConstants> constants = work.constants;
  Tensor many;
  if (constants.size() > kernels::kFewConstants) {
    many = uploaded(ctx.device, constants, DType::kUInt8, MemoryTag::kWorkspace);
    constants = {reinterpret_cast<const kernels::UpdateConstants*>(many.raw()), constants.size()};
  }
  const std::span<const kernels::UpdatePiece> pieces(
      static_cast<const kernels::UpdatePiece*>(tables->pieces.raw()), work.pieces.size());
  const std::span<const int64_t> first(tables->first.data<int64_t>(), work.first.size());
  Tensor norms;
  constexpr int64_t kWords = ExactSum::kWords;
  if (!work.norms.empty()) {
    norms = ctx.workspace(DType::kInt64, {static_cast<int64_t>(work.norms.size()) * kWords});
    arrays.norm_words = norms.data<int64_t>();
  }
  run(ctx,
      [&](auto& on) { kernels::optimizer_update(rule, constants, pieces, first, arrays, on); });
  if (!norms) return;
  std::vector<int64_t> words(static_cast<size_t>(norms.elements()));
  copy_to_host(norms, words.data());
  for (size_t i = 0; i < work.norms.size(); ++i) {
    ExactSum sum;
    std::copy_n(words.begin() + static_cast<int64_t>(i) * kWords, kWords, sum.words().begin());
    work.norms[i].add(sum);
  }
}

}  // namespace

UpdateTables make_update_tables(const std::shared_ptr<Device>& device,
                                std::span<const kernels::UpdatePiece> pieces,
                                std::span<const int64_t> first) {
  return {uploaded(device, pieces, DType::kUInt8, MemoryTag::kOptimizer),
          uploaded(device, first, DType::kInt64, MemoryTag::kOptimizer)};
}

void optimizer_update(const OpContext& ctx, kernels::UpdateRule rule, const UpdateWork& work,
                      UpdateTensors& tensors) {
  const Op op{ctx, kOp};
  check_dense(tensors.grad, op, "grad");
  kernels::UpdateArrays arrays;
  const int64_t n = arrays.n = tensors.grad.elements();
  arrays.grad = tensors.grad.raw();
  arrays.grad_kind = number_kind(tensors.grad, "grad");
  if (tensors.master && tensors.master.dtype() != DType::kFloat32) {
    check_elements(tensors.master, op, "master", tensors.master.dtype(), n);
    DS_CHECK(!tensors.model && ctx.device->kind() == DeviceKind::kCpu, Code::kInvalidArgument, kOp,
             ": masters below fp32 are the model themselves, and on the CPU");
    arrays.model_kind = number_kind(tensors.master, "master");
    arrays.model = tensors.master.raw();
  } else if (tensors.master) {
    check_elements(tensors.master, op, "master", DType::kFloat32, n);
    arrays.master = tensors.master.data<float>();
  } else {
    DS_CHECK(!tensors.model, Code::kInvalidArgument, kOp,
             ": split masters have no further copy of the model");
    check_elements(tensors.weight, op, "weight", DType::kBFloat16, n);
    check_elements(tensors.low, op, "low", DType::kUInt16, n);
    arrays.weight = tensors.weight.data<bfloat16>();
    arrays.low = static_cast<uint16_t*>(tensors.low.raw());
  }
  if (tensors.model) {
    check_elements(tensors.model, op, "model", tensors.model.dtype(), n);
    arrays.model_kind = number_kind(tensors.model, "model");
    DS_CHECK(arrays.model_kind != kernels::NumberKind::kFp32, Code::kInvalidArgument, kOp,
             ": an fp32 model is its own master");
    arrays.model = tensors.model.raw();
  }
  for (int i = 0; i < kernels::update_states(rule); ++i) {
    check_dense(tensors.states[i].data, op, "state");
    if (tensors.states[i].scales) check_dense(tensors.states[i].scales, op, "scales");
    arrays.state[i] = state_array(tensors.states[i]);
    DS_CHECK(tensors.states[i].data.elements() == n, Code::kInvalidArgument, kOp,
             ": a state must have ", n, " elements, not ", tensors.states[i].data.elements());
  }
  for (const kernels::UpdateConstants& constants : work.constants) check_constants(constants);
  check_pieces(work, n);
  if (rule == kernels::UpdateRule::kLambMoments) {
    DS_CHECK(work.norms.size() == 2 * work.pieces.size(), Code::kInternal, kOp,
             ": two norms per piece are needed");
    arrays.norms = work.norms.data();
  }
  if (work.gate) {
    check_elements(work.gate, op, "gate", DType::kUInt8, int64_t{sizeof(kernels::UpdateGate)});
    DS_CHECK(ctx.device->kind() == DeviceKind::kCuda && work.norms.empty(), Code::kInternal, kOp,
             ": only updates on a GPU that give no norms have a gate");
    arrays.gate = static_cast<const kernels::UpdateGate*>(work.gate.raw());
  }
  if (ctx.device->kind() == DeviceKind::kCuda) return update_on_gpu(ctx, rule, work, arrays);
  kernels::optimizer_update(rule, work.constants, work.pieces, work.first, arrays, *ctx.pool);
}

// ---- states, element by element ----

namespace {

// The blocks around [begin, end) of a state on the host: those of a GPU are copied, others are
// where they are.
class HostBlocks {
 public:
  HostBlocks(const StateTensor& state, int64_t begin, int64_t end) : array_(state_array(state)) {
    const int64_t n = state.data.elements();
    DS_CHECK(begin >= 0 && begin <= end && end <= n, Code::kInternal, kOp, ": state range ", begin,
             " to ", end, " of ", n);
    elements = n;
    if (on_host(state.data) || begin == end) return;
    constexpr int64_t kBlock = kernels::kStateBlock;
    first = begin / kBlock * kBlock;
    elements = std::min(n, (end + kBlock - 1) / kBlock * kBlock) - first;
    data_ = state.data.slice(0, first, first + elements);
    numbers_.resize(static_cast<size_t>(data_.bytes()));
    if (state.scales) {
      scales_ = state.scales.slice(0, first / kBlock, (first + elements + kBlock - 1) / kBlock);
      scale_numbers_.resize(static_cast<size_t>(scales_.elements()));
    }
    copy_to_host(data_, numbers_.data());
    if (scales_) copy_to_host(scales_, scale_numbers_.data());
    array_.data = numbers_.data();
    array_.scales = scale_numbers_.data();
  }

  // Takes what was written into the blocks back to the GPU.
  void put_back() {
    if (!data_) return;
    copy_from_host(numbers_.data(), data_);
    if (scales_) copy_from_host(scale_numbers_.data(), scales_);
  }

  const kernels::StateArray& array() const { return array_; }
  int64_t first = 0;     // the element that array() begins with
  int64_t elements = 0;  // of array()

 private:
  kernels::StateArray array_;
  Tensor data_, scales_;
  std::vector<std::byte> numbers_;
  std::vector<float> scale_numbers_;
};

}  // namespace

void read_state(const StateTensor& state, int64_t begin, int64_t end, float* out) {
  const HostBlocks blocks(state, begin, end);
  kernels::read_state(blocks.array(), blocks.elements, begin - blocks.first, end - begin, out);
}

void write_state(StateTensor& state, int64_t begin, int64_t end, const float* values) {
  HostBlocks blocks(state, begin, end);
  kernels::write_state(blocks.array(), blocks.elements, begin - blocks.first, end - begin, values);
  blocks.put_back();
}

}  // namespace ds::ops
