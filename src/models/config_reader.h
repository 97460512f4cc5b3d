// Reads a Hugging Face config.json strictly: every key is asked for by the family, known to be
// harmless, or refused by name.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "models/architecture.h"
#include "ops/activation.h"

namespace ds::models {

inline constexpr int64_t kMostExperts = 1 << 16;  // of one layer

class ConfigReader {
 public:
  // `config` must outlive the reader; `where` begins every message.
  explicit ConfigReader(const Json& config, std::string where = "model config")
      : config_(config), where_(std::move(where)) {}

  // A key that is null counts as absent, except for has() and is_null().
  bool has(const char* key) const;
  bool is_null(const char* key) const;
  int64_t count(const char* key, int64_t fallback, int64_t limit, int64_t least = 1) const;
  // In [low, high).
  double number(const char* key, double fallback, double low, double high) const;
  std::optional<double> optional_number(const char* key, double low, double high) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  std::vector<std::string> texts(const char* key) const;  // empty when absent
  bool is_list(const char* key) const;
  std::vector<int64_t> counts(const char* key, int64_t limit) const;  // 0 and more
  // Refuses more experts than any machine holds, each of which has names and layers of its own.
  void check_experts(const char* key, int64_t in_all_layers) const;
  // pad_token_id as the row of the embedding that PyTorch leaves without a gradient: negative ones
  // count from the end of the vocabulary; -1 for null and for tokens outside it. `fallback` when
  // the key is absent.
  int64_t padding_row(int64_t vocab_size, std::optional<int64_t> fallback = {}) const;
  // The object under a key; nullptr when absent.
  const Json* object(const char* key) const;

  // Options whose other value this version cannot compute.
  void require(const char* key, bool value) const;
  // Keys that the family has and that change nothing here.
  void ignore(std::initializer_list<const char*> keys) const;
  // Adds the keys that configurations of every family carry along.
  void ignore_common() const;
  // Refuses keys that nobody asked for, but for those that are known to be other programs' own.
  void finish() const;

  const std::string& where() const { return where_; }

 private:
  const Json* find(const char* key) const;

  const Json& config_;
  std::string where_;
  mutable std::vector<std::string> asked_;
};

// "silu", "gelu", "gelu_new" and their kin; kUnsupported names the key.
ops::Activation read_activation(const ConfigReader& read, const char* key,
                                const std::string& fallback);

}  // namespace ds::models
