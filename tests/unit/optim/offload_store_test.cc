// Optimizers whose masters, gradients and states rest in a store: an update goes through them by
// sub-groups, touches nothing outside of what it fetched, and has the bits of one that does not.
#include <gmock/gmock.h>

#include "fresh_seed.h"
#include "optim_world.h"
#include "tensor/transfer.h"

namespace ds::optim::testing {
namespace {

// Keeps everything where no update reaches it: what is fetched is a copy.
class FarStore : public OffloadStore {
 public:
  FarStore(std::shared_ptr<Device> device, int64_t most)
      : device_(std::move(device)), most_(most) {}

  int64_t sub_group_elements() const override { return most_; }
  void fetch(const SubGroup& group, ops::UpdateTensors& part, bool weights) override {
    EXPECT_FALSE(open_);
    open_ = true;
    group_ = group;
    weights_ = weights;
    at_home_ = part;
    for_each(part, [&](Tensor& x) { x = copied_to_host(x, device_); });
  }
  void flush(const SubGroup& group, const ops::UpdateTensors& part, bool weights) override {
    EXPECT_TRUE(open_);
    open_ = false;
    EXPECT_EQ(group.begin, group_.begin);
    EXPECT_EQ(group.end, group_.end);
    EXPECT_EQ(weights, weights_);
    largest = std::max(largest, group.elements());
    if (weights) written += group.elements();
    copy_states(part);
    if (!weights) return;
    copy(part.master, at_home_.master);
    copy(part.weight, at_home_.weight);
    copy(part.low, at_home_.low);
    copy(part.model, at_home_.model);
  }

  int64_t largest = 0, written = 0;

 private:
  template <class Fn>
  static void for_each(ops::UpdateTensors& part, const Fn& fn) {
    for (Tensor* x : {&part.master, &part.weight, &part.low, &part.model, &part.grad}) {
      if (*x) fn(*x);
    }
    for (ops::StateTensor& state : part.states) {
      for (Tensor* x : {&state.data, &state.scales}) {
        if (*x) fn(*x);
      }
    }
  }
  void copy_states(const ops::UpdateTensors& part) const {
    for (int i = 0; i < kernels::kMostStates; ++i) {
      copy(part.states[i].data, at_home_.states[i].data);
      copy(part.states[i].scales, at_home_.states[i].scales);
    }
  }
  static void copy(const Tensor& from, const Tensor& to) {
    if (from) copy_tensor(from, to);
  }

  const std::shared_ptr<Device> device_;
  const int64_t most_;
  bool open_ = false, weights_ = false;
  SubGroup group_;
  ops::UpdateTensors at_home_;
};

struct Case {
  const char* json;
  bool split;
};

TEST(OffloadStore, UpdatesBySubGroupsHaveTheSameBits) {
  constexpr int64_t kChunk = kernels::kUpdateChunk;
  // Tensors beside and across the cuts, and a gap.
  const std::vector<TensorPlace> places =
      make_places({{300, 200}, {77}, {64, 1024}, {5, 7}, {1}, {100, 900}}, 1, "h");
  for (const Case& one : {Case{R"({"type": "AdamW", "params": {"weight_decay": 0.1}})", false},
                          Case{R"({"type": "AdamW", "params": {"weight_decay": 0.1}})", true},
                          Case{R"({"type": "AdamW", "state_dtype": "int8"})", false},
                          Case{R"({"type": "Lion", "state_dtype": "bf16"})", true},
                          Case{R"({"type": "SGD", "params": {"lr": 0.1}})", false},
                          Case{R"({"type": "Lamb", "params": {"weight_decay": 0.1}})", false},
                          Case{R"({"type": "Lamb", "state_dtype": "int8"})", true},
                          Case{R"({"type": "Muon"})", false}}) {
    for (const int64_t most : {int64_t{1}, kChunk, 2 * kChunk + 5, int64_t{1} << 40}) {
      SCOPED_TRACE(str_cat(one.json, " in sub-groups of ", most));
      const OptimizerConfig config = parse_optimizer(one.json);
      WorldOptions options;
      options.seed = ds::run_seed();
      options.threads = 2;
      options.split = one.split;
      options.model = one.split ? DType::kFloat32 : DType::kBFloat16;
      World near(places, options), far(places, options);
      const auto store = std::make_shared<FarStore>(far.ctx().device, most);
      const auto plain = near.optimizer(config);
      const auto rested = make_optimizer(config, owned_places(places, 0, span_of(places)),
                                         far.ctx().device, {}, store);
      for (int i = 0; i < 3; ++i) {
        for (World* world : {&near, &far}) world->next_gradients();
        plain->step(near.ctx(), near.step_of(*plain), near.flat());
        rested->step(far.ctx(), far.step_of(*rested), far.flat());
      }
      EXPECT_EQ(far.master_bits(), near.master_bits());
      EXPECT_GE(store->written, 3 * (span_of(places) - 32 * std::ssize(places)));
      EXPECT_LE(store->written, 3 * span_of(places));
      for (size_t k = 0; k < places.size(); ++k) {
        for (const std::string& state : plain->states(k)) {
          const Tensor a = plain->read_state(near.ctx(), k, state);
          const Tensor b = rested->read_state(far.ctx(), k, state);
          EXPECT_EQ(std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())), 0)
              << k << " " << state;
        }
      }
      if (std::string_view(one.json).find("Muon") == std::string_view::npos) {
        EXPECT_LE(store->largest, std::max(most, kChunk));
      } else {
        EXPECT_GE(store->largest, 100 * 900) << "a matrix stays whole";
      }
    }
  }
}

}  // namespace
}  // namespace ds::optim::testing
