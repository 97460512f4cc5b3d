// Tokenizers of ds.h.
#include <cstring>
#include <vector>

#include "capi/args.h"
#include "capi/fence.h"
#include "capi/json_args.h"
#include "capi/tensor_object.h"
#include "capi/token_args.h"
#include "capi/tokenizer_object.h"
#include "models/weights.h"
#include "tokenizer/bpe_trainer.h"

namespace ds::capi {
namespace {

ds_tokenizer* publish_tokenizer(TokenizerPtr tokenizer) {
  return publish<ds_tokenizer>(std::make_shared<TokenizerObject>(std::move(tokenizer)));
}

// A C text cannot hold U+0000, which a byte-level token may mean: it shows as U+FFFD instead of
// cutting the text short.
std::string without_nul(const std::string& text) {
  if (text.find('\0') == std::string::npos) return text;
  std::string out;
  for (const char c : text) {
    if (c == '\0') {
      out += "\xEF\xBF\xBD";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace
}  // namespace ds::capi

using namespace ds;        // NOLINT: this file defines the C functions of this namespace
using namespace ds::capi;  // NOLINT

ds_status ds_tokenizer_create_bytes(ds_tokenizer** out_tokenizer) {
  return guard(__func__, [&] {
    ds_tokenizer*& out = out_param(out_tokenizer, "out_tokenizer");
    out = publish_tokenizer(make_byte_tokenizer());
  });
}

ds_status ds_tokenizer_open(const char* path, ds_tokenizer** out_tokenizer) {
  return guard(__func__, [&] {
    ds_tokenizer*& out = out_param(out_tokenizer, "out_tokenizer");
    out = publish_tokenizer(models::open_tokenizer(path_param(path, "path")));
  });
}

ds_status ds_tokenizer_from_json(const char* json, int64_t size, ds_tokenizer** out_tokenizer) {
  return guard(__func__, [&] {
    ds_tokenizer*& out = out_param(out_tokenizer, "out_tokenizer");
    out = publish_tokenizer(
        parse_tokenizer_json(sized_text_param(json, size, "json", "size"), "the tokenizer"));
  });
}

ds_status ds_tokenizer_train(const char* text, int64_t size, const char* options_json,
                             ds_tokenizer** out_tokenizer) {
  return guard(__func__, [&] {
    ds_tokenizer*& out = out_param(out_tokenizer, "out_tokenizer");
    const std::string_view corpus = sized_text_param(text, size, "text", "size");
    const JsonArguments given(options_json, "tokenizer options",
                              {"vocab_size", "min_frequency", "special_tokens"});
    BpeTrainerOptions options;
    options.vocab_size =
        static_cast<int32_t>(given.integer("vocab_size", options.vocab_size, 1, INT32_MAX));
    options.min_frequency = given.integer("min_frequency", options.min_frequency, 1, INT64_MAX);
    options.special_tokens = given.texts("special_tokens", options.special_tokens);
    BpeTrainer trainer(std::move(options));
    trainer.add_text(corpus);
    out = publish_tokenizer(trainer.train());
  });
}

ds_status ds_tokenizer_encode(const ds_tokenizer* tokenizer, const char* text, int64_t size,
                              ds_bool add_special, ds_tensor** out_ids) {
  return guard(__func__, [&] {
    const auto object = look_up(tokenizer, "tokenizer");
    ds_tensor*& out = out_param(out_ids, "out_ids");
    EncodeOptions options;
    options.add_special_tokens = add_special != 0;
    out = publish_tensor(id_tensor(
        object->tokenizer->encode(sized_text_param(text, size, "text", "size"), options)));
  });
}

ds_status ds_tokenizer_decode(const ds_tokenizer* tokenizer, const ds_tensor* ids,
                              ds_bool skip_special, char** out_text) {
  return guard(__func__, [&] {
    const auto object = look_up(tokenizer, "tokenizer");
    const auto input = enter(ids, "ids", Entry::kShared);
    char*& out = out_param(out_text, "out_text");
    DecodeOptions options;
    options.skip_special_tokens = skip_special != 0;
    const std::vector<int32_t> list = id_list(host_tensor(*input, "ids"), "ids");
    out = make_c_string(without_nul(object->tokenizer->decode_text(list, options)));
  });
}

ds_status ds_tokenizer_describe(const ds_tokenizer* tokenizer, ds_tokenizer_info* out_info) {
  return guard(__func__, [&] {
    const auto object = look_up(tokenizer, "tokenizer");
    ds_tokenizer_info info{};
    info.vocab_size = object->tokenizer->vocab_size();
    info.end_of_text = object->tokenizer->eos_id().value_or(-1);
    give_struct(info, out_info, "out_info");
  });
}

ds_status ds_tokenizer_token_to_id(const ds_tokenizer* tokenizer, const char* token,
                                   int32_t* out_id) {
  return guard(__func__, [&] {
    const auto object = look_up(tokenizer, "tokenizer");
    int32_t& out = out_param(out_id, "out_id");
    const std::string_view name = text_param(token, "token");
    const auto id = object->tokenizer->id(name);
    DS_CHECK(id, Code::kNotFound, "the tokenizer has no token \"", printable(name), "\"");
    out = *id;
  });
}

ds_status ds_tokenizer_id_to_token(const ds_tokenizer* tokenizer, int32_t id, char** out_token) {
  return guard(__func__, [&] {
    const auto object = look_up(tokenizer, "tokenizer");
    char*& out = out_param(out_token, "out_token");
    const auto token = object->tokenizer->token(id);
    DS_CHECK(token, Code::kNotFound, "the tokenizer has no token with id ", id);
    out = make_c_string(without_nul(*token));
  });
}

ds_status ds_tokenizer_to_json(const ds_tokenizer* tokenizer, char** out_json) {
  return guard(__func__, [&] {
    const auto object = look_up(tokenizer, "tokenizer");
    char*& out = out_param(out_json, "out_json");
    out = make_c_string(object->tokenizer->to_json());
  });
}

void ds_tokenizer_destroy(ds_tokenizer* tokenizer) { end_handle(tokenizer); }
