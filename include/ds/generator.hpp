// ds/generator.hpp - Models that run without being trained. Part of ds.hpp.
#ifndef DS_GENERATOR_HPP
#define DS_GENERATOR_HPP

#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "base.hpp"
#include "comm.hpp"
#include "generator.h"
#include "model.hpp"
#include "tensor.hpp"

namespace libds {

// Sequences that go through a model together; see ds_batch.
struct Batch {
  const Tensor* ids = nullptr;
  const Tensor* labels = nullptr;
  const Tensor* attention_mask = nullptr;
  const Tensor* segments = nullptr;
  const Tensor* token_types = nullptr;

  ds_batch plain() const {
    const auto handle = [](const Tensor* tensor) { return tensor ? tensor->get() : nullptr; };
    ds_batch out = DS_BATCH_INIT;
    out.ids = handle(ids);
    out.labels = handle(labels);
    out.attention_mask = handle(attention_mask);
    out.segments = handle(segments);
    out.token_types = handle(token_types);
    return out;
  }
};

// Runs a model without training it.
class Generator : public detail::Handle<ds_generator, ds_generator_destroy> {
 public:
  using Handle::Handle;

  // "" as options: the model's own weights; else as in ds_generator_create.
  explicit Generator(const Model& model, const std::string& options_json = "") {
    ds_generator* out = nullptr;
    check(ds_generator_create(model.get(), detail::or_null(options_json), &out));
    reset(out);
  }

  // Of ranks that share the model's experts: every rank's call, as in ds_generator_create_shared.
  Generator(const Model& model, Comm& comm, const std::string& options_json = "") {
    ds_generator* out = nullptr;
    check(ds_generator_create_shared(model.get(), detail::or_null(options_json), comm.get(), &out));
    reset(out);
  }

  // Form and size of the weights.
  ds_generator_info info() const {
    ds_generator_info out = DS_GENERATOR_INFO_INIT;
    check(ds_generator_describe(get(), &out));
    return out;
  }
  // A float32 copy of a parameter as products see it.
  Tensor parameter(int64_t parameter) const {
    ds_tensor* out = nullptr;
    check(ds_generator_get_parameter(get(), parameter, &out));
    return Tensor(out);
  }

  // New token ids, without the prompt. An exception thrown by `on_token` stops the text and
  // arrives here.
  std::vector<int32_t> generate(const Tensor& prompt, const GenerateOptions& options = {},
                                const TokenFunction& on_token = {}) {
    const ds_generate_options plain = plain_options(options);
    struct Context {
      const TokenFunction* function;
      std::exception_ptr thrown;
    } context{&on_token, nullptr};
    const ds_token_fn trampoline = [](void* user_data, int32_t token) -> int32_t {
      auto& self = *static_cast<Context*>(user_data);
      try {
        return (*self.function)(token) ? 0 : 1;
      } catch (...) {
        self.thrown = std::current_exception();
        return 1;
      }
    };
    ds_tensor* out = nullptr;
    const ds_status status = ds_generator_generate(get(), prompt.get(), &plain,
                                                   on_token ? trampoline : nullptr, &context, &out);
    if (context.thrown) std::rethrow_exception(context.thrown);
    check(status);
    return Tensor(out).to_vector<int32_t>();
  }

  // New token ids of each prompt, of which at most `at_once` (0: 16) go through the model together.
  // An exception thrown by `on_token` ends the call and arrives here.
  std::vector<std::vector<int32_t>> generate_batch(const std::vector<std::vector<int32_t>>& prompts,
                                                   const GenerateOptions& options = {},
                                                   int64_t at_once = 0,
                                                   const TextTokenFunction& on_token = {}) {
    const ds_generate_options plain = plain_options(options);
    std::vector<int32_t> ids;
    std::vector<int64_t> counts;
    for (const std::vector<int32_t>& prompt : prompts) {
      ids.insert(ids.end(), prompt.begin(), prompt.end());
      counts.push_back(static_cast<int64_t>(prompt.size()));
    }
    const Tensor all = Tensor::from(ids), each = Tensor::from(counts);
    ds_prompts given = DS_PROMPTS_INIT;
    given.ids = all.get();
    given.counts = each.get();
    given.at_once = at_once;
    struct Context {
      const TextTokenFunction* function;
      std::exception_ptr thrown;
    } context{&on_token, nullptr};
    const ds_text_token_fn trampoline = [](void* user_data, int64_t text,
                                           int32_t token) -> ds_text_reply {
      auto& self = *static_cast<Context*>(user_data);
      try {
        return static_cast<ds_text_reply>((*self.function)(text, token) ? DS_TEXT_GOES_ON
                                                                        : DS_TEXT_ENDS);
      } catch (...) {
        self.thrown = std::current_exception();
        return DS_TEXTS_END;
      }
    };
    ds_tensor* out_ids = nullptr;
    ds_tensor* out_counts = nullptr;
    const ds_status status = ds_generator_generate_batch(
        get(), &given, &plain, on_token ? trampoline : nullptr, &context, &out_ids, &out_counts);
    if (context.thrown) std::rethrow_exception(context.thrown);
    check(status);
    const std::vector<int32_t> tokens = Tensor(out_ids).to_vector<int32_t>();
    std::vector<std::vector<int32_t>> texts;
    auto at = tokens.begin();
    for (const int64_t count : Tensor(out_counts).to_vector<int64_t>()) {
      texts.emplace_back(at, at + static_cast<std::ptrdiff_t>(count));
      at += static_cast<std::ptrdiff_t>(count);
    }
    return texts;
  }

  // Of a rank without a text, among ranks that share experts: until the others are done.
  void take_part() { check(ds_generator_take_part(get())); }

  // From any thread: ends the generation that runs.
  void interrupt() { check(ds_generator_interrupt(get())); }

  // float32 [batch, length, vocabulary].
  Tensor logits(const Batch& batch) {
    const ds_batch plain = batch.plain();
    ds_tensor* out = nullptr;
    check(ds_generator_logits(get(), &plain, &out));
    return Tensor(out);
  }
  Tensor logits(const Tensor& ids) { return logits(Batch{&ids}); }
  // float32 [batch, length, width].
  Tensor hidden_states(const Batch& batch) {
    const ds_batch plain = batch.plain();
    ds_tensor* out = nullptr;
    check(ds_generator_hidden_states(get(), &plain, &out));
    return Tensor(out);
  }
  Tensor hidden_states(const Tensor& ids) { return hidden_states(Batch{&ids}); }

 private:
  static ds_generate_options plain_options(const GenerateOptions& options) {
    ds_generate_options plain = DS_GENERATE_OPTIONS_INIT;
    plain.max_tokens = options.max_tokens;
    plain.temperature = options.temperature;
    plain.top_k = options.top_k;
    plain.top_p = options.top_p;
    plain.seed = options.seed;
    plain.stop_token = options.stop_token.value_or(0);
    plain.has_stop_token = options.stop_token.has_value();
    plain.no_graphs = !options.graphs;
    return plain;
  }
};

}  // namespace libds

#endif  // DS_GENERATOR_HPP
