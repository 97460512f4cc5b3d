#include "base/json.h"

#include <set>
#include <vector>

namespace ds {
namespace {

// Builds the document while checking depth and duplicate keys, which the stock parser does not
// report: it keeps the last of two equal keys silently.
class CheckedBuilder : public nlohmann::json_sax<Json> {
 public:
  CheckedBuilder(std::string_view what, Code code, const JsonLimits& limits)
      : what_(what), code_(code), limits_(limits) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Frame& frame = stack_.back();
    if (!frame.keys.insert(name).second) {
      fail(code_, what_, ": duplicate key ", path(), "/", printable(name));
    }
    frame.key = name;
    return true;
  }

  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    std::string text = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: ..." -> the useful part.
    if (const size_t cut = text.find("] "); cut != std::string::npos) text = text.substr(cut + 2);
    fail(code_, what_, ": ", printable(text, 300));
  }

  Json take() { return std::move(root_); }

 private:
  struct Frame {
    Json value;
    std::string key;
    std::set<std::string> keys;
  };

  std::string path() const {
    std::string out;
    for (size_t i = 0; i + 1 < stack_.size(); ++i) {
      out += "/";
      out += stack_[i].value.is_array() ? std::to_string(stack_[i].value.size())
                                        : printable(stack_[i].key);
    }
    return out;
  }

  template <class T>
  bool put(T&& value) {
    if (stack_.empty()) {
      root_ = std::forward<T>(value);
    } else if (Frame& frame = stack_.back(); frame.value.is_array()) {
      frame.value.push_back(std::forward<T>(value));
    } else {
      // The key is known to be new, so append: operator[] would search the whole object.
      frame.value.get_ref<Json::object_t&>().emplace_back(frame.key, std::forward<T>(value));
    }
    return true;
  }

  bool open(Json container) {
    DS_CHECK(static_cast<int>(stack_.size()) < limits_.max_depth, code_, what_,
             ": nested deeper than ", limits_.max_depth, " levels");
    stack_.push_back({std::move(container), {}, {}});
    return true;
  }

  bool close() {
    Json done = std::move(stack_.back().value);
    stack_.pop_back();
    return put(std::move(done));
  }

  std::string what_;
  Code code_;
  JsonLimits limits_;
  std::vector<Frame> stack_;
  Json root_;
};

}  // namespace

Json parse_json(std::string_view text, std::string_view what, Code code, const JsonLimits& limits) {
  CheckedBuilder builder(what, code, limits);
  Json::sax_parse(text.begin(), text.end(), &builder, nlohmann::detail::input_format_t::json,
                  /*strict=*/true, limits.allow_comments);
  return builder.take();
}

std::string dump_json(const Json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace ds
