// Fuzzes the engine's configuration: any text either is refused with a configuration error or
// resolves to a document that resolves to itself.
#include <optional>

#include "config/check.h"
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

// Read with every liberty, a document is refused or means what its strict form means.
void try_liberties(std::string_view text) {
  ds::ReadOptions liberties;
  liberties.lenient = true;
  liberties.resolve_auto.emplace();
  liberties.resolve_auto->lr = 1e-4;
  liberties.resolve_auto->precision = "bf16";
  liberties.resolve_auto->total_steps = 10;
  liberties.resolve_auto->micro_batch = 1;
  std::optional<ds::CheckedConfig> checked;
  ds::fuzz::must_succeed("a check lists problems and throws none",
                         [&] { checked = ds::check_config(text, {}, liberties); });
  claim(!ds::dump_json(ds::describe_check(*checked)).empty(), "a check can be shown");
  if (!checked->accepted()) return;
  const std::string strict = ds::dump_json(ds::given_document(checked->parsed));
  ds::fuzz::must_succeed("the document given back is strict", [&] {
    const std::string again = ds::dump_json(ds::load_config(strict).resolved());
    claim(again == ds::dump_json(checked->parsed.values), "and means the same", strict);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ds::fuzz::be_quiet();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try_document(text, {});
  try_document(text, {.data_parallel_size = 2, .world_size = 4});
  try_liberties(text);
  return 0;
}
