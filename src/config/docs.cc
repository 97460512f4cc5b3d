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
  gives the JSON pointer (`/zero_optimization/stage`) and the nearest right key. All problems of a
  document are found at once: a message gives the first and says where the others are,
  `ds config check` and `ds_config_check` list them.
* `5e8` is accepted for integers. `//` and `/* */` comments are allowed. In the sections where
  `"auto"` means the default, DeepSpeed's typed ones, booleans and numbers may be text (`"true"`,
  `"500000000"`); elsewhere only where noted.
* `"auto"` stands for the default in the sections that say so and is an error elsewhere, because
  nothing would resolve it; leaving the key out is enough. It is an error in any section where it
  would decide what trains or where: `enabled` of `fp16` and `bf16`, `stage`, the `device` of offload.
* A document without `optimizer` trains with AdamW at its defaults: a warning says so, and the
  resolved document shows it. DeepSpeed refuses it, and so do `ds train`, `ds config check` and the
  option `require_optimizer`.
* Deprecated keys are forwarded with a warning. Giving the old and the new key is an error.
* A key whose feature this build lacks may be given its default. A value that would ask for the
  feature is refused by name: those keys are marked *not in this build* below. A section with a
  switch is checked even when the switch is off, but asks for nothing then.
* The resolved document (`ds_engine_config`) holds every key with its value, and for each value
  where it comes from: `given`, `default`, `derived` from other keys, `set` over the document, `auto`,
  or `deprecated:<pointer>`. `given` beside it holds what was asked for alone.

## Documents as people publish them

Many published documents are half of a configuration: the other half is the command line of Hugging
Face's Trainer or of Accelerate. Two options of `ds_engine_create`, `ds_config_check` and the
`ds` program read them; without the options the document is refused, or means what it says.

**`resolve_auto`** (`--resolve-auto`) gives `"auto"` the value that these programs give it. The
caller's values come first (`--auto KEY=VALUE`); what decides the training has no other:

| key | `"auto"` becomes |
| --- | --- |
| batch sizes | the caller's, else as if the key were not there |
| `gradient_clipping` | the caller's, else 1.0 |
| `fp16.enabled`, `bf16.enabled` | the caller's `precision`; false when the other one is true; else an error |
| `optimizer.params.lr` | the caller's `lr`; else an error |
| `betas`, `eps`, `weight_decay` | the caller's, else [0.9, 0.999], 1e-8, 0.0 |
| `warmup_min_lr` | 0 |
| `warmup_max_lr` | the caller's `lr`, else the document's, else an error |
| `warmup_num_steps` | the caller's, else 0 |
| `total_num_steps` | the caller's (`--steps`); else an error |
| `zero_optimization.stage`, `device` of offload | the caller's `stage`, `offload_optimizer`, `offload_param`; else an error |
| `reduce_bucket_size` | hidden size of the model squared |
| `stage3_prefetch_bucket_size` | 0.9 of that |
| `stage3_param_persistence_threshold` | 10 hidden sizes |
| others of `optimizer` and `scheduler` | an error |
| others | the default |

A document without `optimizer` then trains with AdamW at the caller's `lr`, which is what the Trainer
makes. A schedule that the Trainer would make is not part of the document: the rate is constant.

**`lenient`** (`--lenient`) passes over what DeepSpeed passes over, each with a warning: trailing
commas, comments that begin with `#`, keys that begin with `_`, `#` or `//`, and unknown keys at the
top level and in the sections that DeepSpeed does not type. A key that is nearly another's name or
has its place elsewhere stays an error, as do unknown keys of typed sections and of `params`, and
everything that would change results.

`set` (`--set`) puts values over the document's before anything is read.

Two forms that DeepSpeed reads besides are refused. HJSON (keys and texts without quotes, members without commas) has
no reader that Debian keeps: `hjson -j` makes JSON of it. Base64 is how DeepSpeed's launcher hands a document to its
own processes; `ds launch` hands files, and `base64 -d` gives the text back.

An `optimizer` without `type` is refused: DeepSpeed takes the optimizer object of the program then,
which does not exist here.

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

Division must leave no remainder; the error names all four numbers, and the ranks that would fit.

)";

std::string escape_cell(const std::string& text) {
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
      out_.append(body.substr(0, end)).append(title).append(" for ").append(choices);
      out_.append(body.substr(end));
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
