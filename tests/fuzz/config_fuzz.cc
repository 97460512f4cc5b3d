// Fuzzes the engine's configuration: any text either is refused with a configuration error or
// resolves to a document that resolves to itself.
#include <optional>

#include "config/config.h"
#include "fuzz/fuzz_support.h"

namespace {

using ds::fuzz::claim;

void try_document(std::string_view text, const ds::ConfigEnvironment& environment) {
  std::optional<ds::Config> config;
  if (!ds::fuzz::accepts([&] { config = ds::load_config(text, environment); })) return;

  const std::string resolved = ds::dump_json(config->resolved());
  ds::fuzz::must_succeed("the resolved document is a valid document", [&] {
    const ds::Config again = ds::load_config(resolved, environment);
    claim(ds::dump_json(again.resolved()) == resolved, "resolving twice changes nothing",
          ds::dump_json(again.resolved()));
  });
  claim(!ds::dump_json(config->resolved_with_origins(), 2).empty(), "origins can be shown");
  for (const auto& [pointer, origin] : config->origins()) {
    claim(pointer.empty() || pointer[0] == '/', "origins are JSON pointers", pointer);
    claim(!origin.empty(), "every value has an origin", pointer);
  }
  for (const std::string& warning : config->warnings()) {
    claim(ds::is_valid_utf8(warning), "warnings are UTF-8", warning);
  }
  const ds::BatchConfig& batch = config->batch;
  claim(batch.micro_batch >= 1 && batch.accumulation >= 1, "batch sizes are at least 1");
  int64_t product = 0;
  const bool overflow = __builtin_mul_overflow(batch.micro_batch, batch.accumulation, &product) ||
                        __builtin_mul_overflow(product, environment.data_parallel_size, &product);
  claim(!overflow && batch.train_batch == product, "the batch is micro x accumulation x ranks");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_document(text, {});
  try_document(text, {.data_parallel_size = 2, .world_size = 4});
  return 0;
}
