// ds/tokenizer.hpp - Text to tokens and back. Part of ds.hpp.
#ifndef DS_TOKENIZER_HPP
#define DS_TOKENIZER_HPP

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base.hpp"
#include "tensor.hpp"
#include "tokenizer.h"

namespace libds {

class Tokenizer : public detail::Handle<ds_tokenizer, ds_tokenizer_destroy> {
 public:
  using Handle::Handle;

  static Tokenizer bytes() {
    ds_tokenizer* out = nullptr;
    check(ds_tokenizer_create_bytes(&out));
    return Tokenizer(out);
  }
  static Tokenizer open(const std::string& path) {
    ds_tokenizer* out = nullptr;
    check(ds_tokenizer_open(path.c_str(), &out));
    return Tokenizer(out);
  }
  static Tokenizer from_json(std::string_view json) {
    ds_tokenizer* out = nullptr;
    check(ds_tokenizer_from_json(detail::pointer(json), static_cast<int64_t>(json.size()), &out));
    return Tokenizer(out);
  }
  // `options_json` as in ds_tokenizer_train; "" for its defaults.
  static Tokenizer train(std::string_view text, const std::string& options_json = "") {
    ds_tokenizer* out = nullptr;
    check(ds_tokenizer_train(detail::pointer(text), static_cast<int64_t>(text.size()),
                             detail::or_null(options_json), &out));
    return Tokenizer(out);
  }

  // Token ids as an int32 tensor, ready to be a prompt.
  Tensor encode(std::string_view text, bool add_special = false) const {
    ds_tensor* out = nullptr;
    check(ds_tokenizer_encode(get(), detail::pointer(text), static_cast<int64_t>(text.size()),
                              add_special, &out));
    return Tensor(out);
  }
  std::string decode(const Tensor& ids, bool skip_special = false) const {
    char* out = nullptr;
    check(ds_tokenizer_decode(get(), ids.get(), skip_special, &out));
    return detail::take(out);
  }
  std::string decode(const std::vector<int32_t>& ids, bool skip_special = false) const {
    return decode(Tensor::from(ids), skip_special);
  }
  ds_tokenizer_info info() const {
    ds_tokenizer_info out = DS_TOKENIZER_INFO_INIT;
    check(ds_tokenizer_describe(get(), &out));
    return out;
  }
  int64_t vocab_size() const { return info().vocab_size; }
  std::optional<int32_t> end_of_text() const {
    const int32_t id = info().end_of_text;
    return id < 0 ? std::nullopt : std::optional<int32_t>(id);
  }
  int32_t token_to_id(const std::string& token) const {
    int32_t out = 0;
    check(ds_tokenizer_token_to_id(get(), token.c_str(), &out));
    return out;
  }
  std::string id_to_token(int32_t id) const {
    char* out = nullptr;
    check(ds_tokenizer_id_to_token(get(), id, &out));
    return detail::take(out);
  }
  std::string to_json() const {
    char* out = nullptr;
    check(ds_tokenizer_to_json(get(), &out));
    return detail::take(out);
  }
};

}  // namespace libds

#endif  // DS_TOKENIZER_HPP
