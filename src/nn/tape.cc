#include "nn/tape.h"

#include <utility>

#include "nn/kept_inputs.h"
#include "ops/elementwise.h"

namespace ds::nn {

void GradientSlot::add(const OpContext& ctx, Tensor gradient, bool exclusive) {
  if (!gradient_) {
    gradient_ = std::move(gradient);
    exclusive_ = exclusive;
  } else if (exclusive_) {
    ops::add(ctx, gradient_, gradient, gradient_);
  } else {
    Tensor sum =
        Tensor::empty(ctx.device, gradient_.dtype(), gradient_.shape(), MemoryTag::kActivations);
    ops::add(ctx, gradient_, gradient, sum);
    gradient_ = std::move(sum);
    exclusive_ = true;
  }
}

Tensor GradientSlot::take(bool& exclusive) {
  exclusive = exclusive_;
  return std::exchange(gradient_, Tensor());
}

Tensor GradientSlot::make(Tape& tape, DType dtype, const Shape& shape) const {
  return place_ ? place_(tape) : tape.new_activation(dtype, shape);
}

Value Tape::make_value(Tensor data) const {
  return {std::move(data), options_.record ? std::make_shared<GradientSlot>() : nullptr};
}

RandomStream Tape::next_stream() {
  DS_CHECK(next_stream_.op < RandomStream::kOperators, Code::kInternal, "layer ",
           next_stream_.layer, " has more than ", RandomStream::kOperators,
           " operators that draw random numbers");
  const uint32_t op = RandomStream::operator_in_layer(next_stream_.layer, next_stream_.op++);
  return {options_.seed, options_.step, op, options_.first_sample, options_.step_memory};
}

void Tape::used(ParamId id) {
  // A recomputation repeats uses that the forward pass has counted already.
  if (id == kNoParam || recomputing_ || (!options_.record && !checkpointing_)) return;
  if (pending_uses_.size() <= static_cast<size_t>(id)) {
    pending_uses_.resize(static_cast<size_t>(id) + 1);
  }
  ++pending_uses_[static_cast<size_t>(id)];
}

void Tape::used_backward(ParamId id) {
  if (id == kNoParam) return;
  int32_t& pending = pending_uses_.at(static_cast<size_t>(id));
  DS_CHECK(pending > 0, Code::kInternal, "parameter ", id, " has more backward than forward uses");
  if (--pending == 0) gradients().gradient_complete(id);
}

void Tape::backward(size_t mark) {
  while (nodes_.size() > mark) {
    const Backward node = std::move(nodes_.back());
    nodes_.pop_back();
    node(*this);
  }
}

// Sets the tape up to repeat a forward region with recording on, and puts everything back.
class Tape::Recompute {
 public:
  Recompute(Tape& tape, StreamPlace first)
      : tape_(tape),
        record_(std::exchange(tape.options_.record, true)),
        stream_(std::exchange(tape.next_stream_, first)),
        recomputing_(std::exchange(tape.recomputing_, true)) {}
  ~Recompute() {
    tape_.options_.record = record_;
    tape_.next_stream_ = stream_;
    tape_.recomputing_ = recomputing_;
  }

 private:
  Tape& tape_;
  bool record_;
  StreamPlace stream_;
  bool recomputing_;
};

std::vector<Value> Tape::checkpoint(std::span<const Value> inputs, const Body& body) {
  if (!options_.record) return body(*this, inputs);

  const StreamPlace first_stream = next_stream_;
  std::vector<Value> saved(inputs.begin(), inputs.end());
  size_t segment = 0;
  KeptInputs* const kept = options_.kept_inputs;
  if (kept != nullptr) {
    std::vector<Tensor> data;
    for (Value& input : saved) data.push_back(std::exchange(input.data, Tensor()));
    segment = kept->keep(data);
  }
  std::vector<Value> outputs;
  {
    struct Pause {
      Tape& tape;
      ~Pause() {
        tape.options_.record = true;
        tape.checkpointing_ = false;
      }
    } const pause{*this};
    options_.record = false;
    checkpointing_ = true;
    outputs = body(*this, inputs);
  }
  std::vector<std::shared_ptr<GradientSlot>> output_slots;
  for (Value& output : outputs) {
    output.slot = std::make_shared<GradientSlot>();
    output_slots.push_back(output.slot);
  }
  record([saved = std::move(saved), kept, segment, body, first_stream,
          output_slots = std::move(output_slots)](Tape& tape) {
    const std::vector<Tensor> fetched =
        kept != nullptr ? kept->fetch(segment) : std::vector<Tensor>();
    std::vector<Value> detached;
    for (size_t i = 0; i < saved.size(); ++i) {
      detached.push_back({kept != nullptr ? fetched[i] : saved[i].data,
                          saved[i].slot ? std::make_shared<GradientSlot>() : nullptr});
    }
    const size_t mark = tape.mark();
    {
      const Recompute repeat(tape, first_stream);
      const std::vector<Value> again = body(tape, detached);
      for (size_t i = 0; i < again.size(); ++i) {
        bool exclusive = false;
        Tensor gradient = output_slots[i]->take(exclusive);
        if (gradient && again[i].slot) {
          again[i].slot->add(tape.ctx(), std::move(gradient), exclusive);
        }
      }
    }
    tape.backward(mark);
    for (size_t i = 0; i < saved.size(); ++i) {
      if (!detached[i].slot || !*detached[i].slot) continue;
      bool exclusive = false;
      Tensor gradient = detached[i].slot->take(exclusive);
      saved[i].slot->add(tape.ctx(), std::move(gradient), exclusive);
    }
  });
  return outputs;
}

}  // namespace ds::nn
