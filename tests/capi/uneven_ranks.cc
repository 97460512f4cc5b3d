// One process of a group whose members have 3, 3, 3 and 5 batches: a model of the library and
// parameters of its own train until the last is done. uneven_ranks TRANSPORT STAGE
#include <cstdio>
#include <ds.hpp>

namespace {

constexpr int kBatches[] = {3, 3, 3, 5};

std::string config(const std::string& stage) {
  return R"({"train_micro_batch_size_per_gpu": 1, "threads": 1,
             "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
             "zero_optimization": {"stage": )" +
         stage + R"(, "reduce_bucket_size": 2000, "stage3_param_persistence_threshold": 20}})";
}

void expect(bool good, const char* what) {
  if (!good) throw std::runtime_error(what);
}

void train_a_model(libds::Comm& comm, const std::string& stage) {
  libds::Model model = libds::Model::create(
      R"({"model_type": "gpt2", "vocab_size": 61, "n_positions": 32, "n_embd": 32, "n_layer": 2,
          "n_head": 4})",
      7);
  libds::Engine engine(config(stage), model, &comm);
  for (int step = 0; step < kBatches[comm.rank()]; ++step) {
    std::vector<int32_t> ids(16);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>((i * 7 + static_cast<size_t>(comm.rank() * 3 + step)) % 61);
    }
    const libds::Tensor batch = libds::Tensor::from(ids, {1, 16});
    engine.backward(engine.forward(batch, batch));
    expect(engine.step().applied == 1, "a step was not applied");
  }
  engine.join();
  expect(engine.global_step() == 5, "the model made another number of steps");
  expect(engine.samples() == 3 * 4 + 2, "the model read another number of samples");
}

void train_own_parameters(libds::Comm& comm, const std::string& stage) {
  const std::vector<float> start(3000, 1.0f), small(7, 2.0f);
  const libds::Tensor first = libds::Tensor::from(start), second = libds::Tensor::from(small);
  libds::Parameter a, b;
  a.name = "a";
  a.value = &first;
  b.name = "b";
  b.value = &second;
  libds::Model model = libds::Model::from_parameters({a, b});
  libds::Engine engine(config(stage), model, &comm);
  for (int step = 0; step < kBatches[comm.rank()]; ++step) {
    for (const int64_t index : {0, 1}) {
      libds::Scope scope = engine.open_scope(DS_SCOPE_COMPUTE, {index});
      std::vector<float> gradient = scope.tensor(0).to_vector<float>();
      for (float& g : gradient) g += static_cast<float>(comm.rank());
      engine.add_gradient(index, libds::Tensor::from(gradient));
      scope.close();
    }
    expect(engine.step().applied == 1, "a step was not applied");
  }
  engine.join();
  expect(engine.global_step() == 5, "own parameters made another number of steps");
  // Everybody has the weights of the last step.
  const std::vector<float> mine = model.parameter("a").to_vector<float>();
  libds::Tensor least = libds::Tensor::from(mine), most = libds::Tensor::from(mine);
  comm.all_reduce(least, DS_REDUCE_MIN);
  comm.all_reduce(most, DS_REDUCE_MAX);
  expect(least.to_vector<float>() == mine && most.to_vector<float>() == mine, "ranks differ");
  expect(mine[0] < 1.0f, "nothing was learnt");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  libds::Comm comm(-1, -1,
                   std::string(R"({"timeout_seconds": 120, "host_address": "127.0.0.1",
                                   "transport": ")") +
                       argv[1] + "\"}");
  expect(comm.size() == 4, "4 processes are needed");
  train_a_model(comm, argv[2]);
  train_own_parameters(comm, argv[2]);
  comm.finalize();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
