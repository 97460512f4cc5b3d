#include "config/docs.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/text.h"
#include "config/config_table.h"
#include "config/parse.h"

namespace ds {
namespace {

constexpr const char* kIntroduction = R"(# Configuration

<!-- Generated from src/config by the target config_docs. Do not edit. -->

One JSON document configures an engine. It is the DeepSpeed JSON, read strictly:

* Every key that is not on this page is an error, at every level; so is a duplicate key. The message
  gives the JSON pointer (`/zero_optimization/stage`) and the nearest right key.
* `5e8` is accepted for integers. Numbers in strings are errors except where noted. `//` and
  `/* */` comments are allowed.
* `"auto"` stands for the default in the sections that say so and is an error elsewhere, because
  nothing would resolve it.
* Deprecated keys are forwarded with a warning. Giving the old and the new key is an error.
* A key whose feature this build lacks may be given its default. A value that would ask for the
  feature is refused by name: those keys are marked *not in this build* below. A section with a
  switch is checked even when the switch is off, but asks for nothing then.
* The resolved document (`ds_engine_config`) holds every key with its value, and for each value
  where it comes from: `given`, `default`, `derived` from other keys, or `deprecated:<pointer>`.

## Batch sizes

With W ranks that see different samples,
`train_batch_size` = `train_micro_batch_size_per_gpu` x `gradient_accumulation_steps` x W.

| given | derived |
| --- | --- |
| all three | nothing |
| train and micro batch | accumulation = train / micro / W |
| train batch and accumulation | micro batch = train / W / accumulation |
| micro batch and accumulation | train batch |
| train batch | accumulation 1, micro batch = train / W |
| micro batch | accumulation 1, train batch = micro x W |
| accumulation alone, or nothing | an error |

Division must leave no remainder; the error names all four numbers.

)";

std::string escape_cell(std::string text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string default_text(const Key& key) {
  if (key.required) return "required";
  if (key.default_value.is_null()) return key.required_when_on ? "required when on" : "unset";
  if (key.default_value.is_object()) return "";
  return "`" + escape_cell(dump_json(key.default_value)) + "`";
}

std::string name_text(const Key& key) {
  std::string out = "`" + key.name + "`";
  for (const std::string& alias : key.aliases) out += ", `" + alias + "`";
  return out;
}

std::string type_text(const Key& key) {
  std::string out = describe_types(key, /*with_null=*/true, /*all=*/true);
  if (const std::string range = describe_range(key); !range.empty()) out += ", " + range;
  if (key.item) {
    if (const std::string range = describe_range(*key.item); !range.empty()) {
      out += (key.types & kList) && key.types != unsigned{kList} ? ", items " : ", ";
      out += range;
    }
  }
  if (key.any_case) out += ", in any case";
  return escape_cell(out);
}

std::string meaning_text(const Key& key) {
  std::string out = key.description;
  if (key.deprecated) {
    out += key.forward.empty() ? " Deprecated: " + key.replacement + "."
                               : " Deprecated: use `" + key.forward + "`.";
  }
  for (const auto& spellings : key.choices) {
    if (spellings.size() < 2) continue;
    const std::vector<std::string> others(spellings.begin() + 1, spellings.end());
    out += " `" + spellings[0] + "` may be written `" + join(others, "`, `") + "`.";
  }
  if (!key.lacking.empty()) {
    out += " *Not in this build: " + key.lacking;
    std::vector<std::string> accepted;
    for (const Json& value : key.harmless) accepted.push_back("`" + dump_json(value) + "`");
    if (!accepted.empty()) out += "; accepted: " + join(accepted, ", ");
    out += ".*";
  }
  return escape_cell(out);
}

class Page {
 public:
  std::string render() {
    out_ = kIntroduction;
    section("Top level", config_table(), "", 2);
    return std::move(out_);
  }

 private:
  void section(const std::string& title, const KeyTable& table, const std::string& path,
               int level) {
    out_ += std::string(static_cast<size_t>(level), '#') + " " + title + "\n\n";
    if (!table.description.empty()) out_ += table.description + "\n\n";
    if (table.other_keys) out_ += "Further keys are kept as they are.\n\n";
    if (table.auto_is_default) out_ += "`\"auto\"` means the default here.\n\n";
    bool any = false;
    for (const Key& key : table.keys) any = any || !is_section(key);
    if (any) {
      out_ += "| key | default | value | meaning |\n| --- | --- | --- | --- |\n";
      for (const Key& key : table.keys) {
        if (!is_section(key)) row(key);
      }
      out_ += "\n";
    }
    for (const Key& key : table.keys) {
      if (is_section(key)) subsections(key, path + "/" + key.name, level);
    }
  }

  void subsections(const Key& key, const std::string& path, int level) {
    const int deeper = level < 4 ? level + (path.find('/', 1) == std::string::npos ? 0 : 1) : level;
    std::string title = "`" + path + "`";
    for (const std::string& alias : key.aliases) title += " or `/" + alias + "`";
    if (key.table) {
      std::string suffix = key.free_names ? "/<name>" : "";
      if (key.free_names) title = "`" + path + suffix + "`";
      section(title, *key.table, path + suffix, deeper);
    } else {
      variants(key, title, path, deeper);
    }
    if (!key.lacking.empty()) {
      out_ += "*Not in this build: " + key.lacking + ".*\n\n";
    }
  }

  // Values of the sibling key that share one table share one subsection.
  void variants(const Key& key, const std::string& title, const std::string& path, int level) {
    std::vector<std::pair<std::string, std::string>> bodies;  // text -> titles
    for (const auto& [choice, variant] : key.variants) {
      Page page;
      page.section("", *variant, path, level);
      const auto same = std::find_if(bodies.begin(), bodies.end(),
                                     [&](const auto& one) { return one.first == page.out_; });
      if (same != bodies.end()) {
        same->second += ", " + choice;
      } else {
        bodies.emplace_back(page.out_, choice);
      }
    }
    for (const auto& [body, choices] : bodies) {
      const size_t end = body.find('\n');  // of the empty heading
      out_ += body.substr(0, end) + title + " for " + choices + body.substr(end);
    }
  }

  static bool is_section(const Key& key) { return key.table != nullptr || !key.variants.empty(); }

  void row(const Key& key) {
    out_ += "| " + name_text(key) + " | " + default_text(key) + " | " + type_text(key) + " | " +
            meaning_text(key) + " |\n";
  }

  std::string out_;
};

}  // namespace

std::string render_config_docs() { return Page().render(); }

}  // namespace ds
