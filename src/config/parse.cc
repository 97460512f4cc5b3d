#include "config/parse.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "config/auto_values.h"
#include "config/scalar.h"
#include "config/unknown_key.h"

namespace ds {
namespace {

// A value's path as the user wrote it (for messages) and by the canonical names (for origins).
struct Place {
  std::string shown;
  std::string canonical;

  Place child(std::string_view as_written, std::string_view name) const {
    return {shown + "/" + printable(pointer_token(as_written), 200),
            canonical + "/" + pointer_token(name)};
  }
};

// Appends without the search that operator[] makes; the caller knows that the name is new.
void append(Json& object, std::string name, Json value) {
  object.get_ref<Json::object_t&>().emplace_back(std::move(name), std::move(value));
}

class Parser {
 public:
  Parser(const KeyTable& root, const ParseOptions& options) : root_(root), options_(options) {}

  ParsedObject run(const Json& value) {
    try {
      if (!value.is_object()) reject(Place{}, "expected an object, got ", show_value(value));
      out_.values = parse_table(root_, value, Place{}, "given");
    } catch (const Rejected&) {
      out_.values = nullptr;
    }
    if (!options_.collect) throw_first_problem(out_.problems, options_.what, options_.code);
    return std::move(out_);
  }

 private:
  struct Given {
    const Key* key;
    const Json* value;
    Place place;
    std::string origin;
  };

  // What is being read was not accepted; the problem is listed.
  struct Rejected {};

  template <class... Parts>
  [[noreturn]] void reject(const Place& place, const Parts&... parts) {
    list(ProblemKind::kError, place, str_cat(parts...));
    throw Rejected();
  }

  void list(ProblemKind kind, const Place& place, const std::string& text) {
    out_.add(make_problem(kind, place.shown, text));
    if (kind != ProblemKind::kIgnored && !place.canonical.empty()) {
      out_.failed.insert(place.canonical);
    }
  }

  // Goes on after a rejection, which leaves the value at `canonical` unread.
  template <class Read>
  bool survives(const std::string& canonical, Read read) {
    try {
      read();
      return true;
    } catch (const Rejected&) {
      out_.failed.insert(canonical);
      return false;
    }
  }

  // ---- objects ----

  std::vector<Given> collect_given(const KeyTable& table, const Json& object, const Place& place,
                                   const std::string& origin, Json& others) {
    std::vector<Given> given;
    for (const auto& item : object.items()) {
      const std::string& name = item.key();
      const Json& value = item.value();
      if (out_.problems.size() >= kMostProblems) break;
      const Key* key = table.find(name);
      if (key == nullptr) {
        if (table.other_keys) {
          append(others, name, value);
          record(place.child(name, name), origin);
        } else {
          list_unknown(table, object, name, place);
        }
        continue;
      }
      Place here = place.child(name, key->name);
      survives(here.canonical, [&] {
        std::optional<Given> one = resolve_auto(table, {key, &value, here, origin});
        if (one) add_given(table, given, std::move(*one), place);
      });
    }
    return given;
  }

  // Throws Rejected, after every key was looked at, when a key that must be there is not.
  Json parse_table(const KeyTable& table, const Json& object, const Place& place,
                   const std::string& origin) {
    Json others = Json::object();
    const std::vector<Given> given = collect_given(table, object, place, origin, others);
    std::map<const Key*, Json> parsed;
    const bool outer = std::exchange(typed_, table.auto_is_default);
    for (const Given& one : given) {
      survives(one.place.canonical, [&] {
        const KeyTable* chosen = variant_for(table, *one.key, given, place);
        parsed.emplace(one.key, parse_value(*one.key, *one.value, one.place, one.origin, chosen));
      });
    }
    typed_ = outer;
    Json out = Json::object();
    bool whole = true;
    for (const Key& key : table.keys) {
      if (key.deprecated) continue;
      if (const auto it = parsed.find(&key); it != parsed.end()) {
        append(out, key.name, std::move(it->second));
        continue;
      }
      const Place here = place.child(key.name, key.name);
      if (key.required) {
        if (!out_.failed.count(here.canonical)) {
          list(ProblemKind::kError, here, "missing; give " + describe_types(key));
        }
        whole = false;
        append(out, key.name, nullptr);
        continue;
      }
      Json value;
      whole = survives(here.canonical,
                       [&] { value = default_value(table, key, given, here, place); }) &&
              whole;
      append(out, key.name, std::move(value));
    }
    for (auto& [name, value] : others.get_ref<Json::object_t&>()) {
      append(out, name, std::move(value));
    }
    check_required_when_on(table, out, place);
    if (!whole) throw Rejected();
    return out;
  }

  Json default_value(const KeyTable& table, const Key& key, const std::vector<Given>& given,
                     const Place& here, const Place& parent) {
    if (key.default_value.is_object() && !key.free_names) {
      const KeyTable* chosen = variant_for(table, key, given, parent);
      return parse_table(chosen ? *chosen : *key.table, Json::object(), here, "default");
    }
    record(here, "default");
    return key.default_value;
  }

  // Enters a given key into the list; deprecated ones are turned into their replacement.
  void add_given(const KeyTable& table, std::vector<Given>& list, Given one, const Place& parent) {
    const auto taken = [&](const Key* key) {
      return std::find_if(list.begin(), list.end(), [&](const Given& g) { return g.key == key; });
    };
    const Key& key = *one.key;
    if (!key.deprecated) {
      if (const auto other = taken(&key); other != list.end()) both_given(*other, one);
      list.push_back(std::move(one));
      return;
    }
    // The deprecated key's own type check.
    parse_value(key, *one.value, one.place, "", key.table.get());
    if (key.forward.empty()) {
      if (*one.value != key.default_value) {
        reject(one.place, show_value(*one.value), " is no longer possible here; ", key.replacement);
      }
      warn(one.place, "deprecated and without effect; ", key.replacement);
      return;
    }
    const size_t slash = key.forward.find('/');
    const std::string target_name = key.forward.substr(0, slash);
    const Key* target = table.find(target_name);
    warn(one.place, "deprecated; use ", parent.child(target_name, target_name).shown,
         slash == std::string::npos ? "" : key.forward.substr(slash));
    Json value = *one.value;
    if (!key.forward_true.is_null()) {
      if (value == false) return;  // false asked for nothing
      value = key.forward_true;
    }
    if (slash != std::string::npos) {
      Json object = Json::object();
      append(object, key.forward.substr(slash + 1), std::move(value));
      value = std::move(object);
    }
    owned_.push_back(std::move(value));
    Given forwarded{target,
                    &owned_.back(),
                    {one.place.shown, parent.canonical + "/" + pointer_token(target_name)},
                    "deprecated:" + one.place.canonical};
    if (const auto other = taken(target); other != list.end()) both_given(*other, forwarded);
    list.push_back(std::move(forwarded));
  }

  [[noreturn]] void both_given(const Given& a, const Given& b) {
    const bool a_old = starts_with_ignore_case(a.origin, "deprecated:");
    const bool b_old = starts_with_ignore_case(b.origin, "deprecated:");
    const Given& old = a_old ? a : b;
    const Given& fresh = a_old ? b : a;
    if (a_old != b_old) {
      reject(old.place, "deprecated form of ", fresh.place.shown,
             ", which is given too; keep only the latter");
    }
    reject(b.place, "another name of ", a.place.shown, ", which is given too; keep one");
  }

  const KeyTable* variant_for(const KeyTable& table, const Key& key,
                              const std::vector<Given>& given, const Place& place) {
    if (key.chosen_by.empty()) return key.table.get();
    const Key* chooser = table.find(key.chosen_by);
    Json value = chooser->default_value;
    bool found = !chooser->required;
    for (const Given& one : given) {
      if (one.key != chooser) continue;
      value = parse_value(*chooser, *one.value, one.place, one.origin, chooser->table.get());
      found = true;
    }
    if (!found) {
      reject(place.child(chooser->name, chooser->name), "missing; give ", describe_types(*chooser));
    }
    for (const auto& [name, variant] : key.variants) {
      if (value == name) return variant.get();
    }
    fail(Code::kInternal, "key table: ", key.name, " has no variant for ", show_value(value));
  }

  void check_required_when_on(const KeyTable& table, const Json& out, const Place& place) {
    if (table.gate.empty()) return;
    const Json& gate = out.at(table.gate);
    if (gate == table.find(table.gate)->default_value) return;
    for (const Key& key : table.keys) {
      if (!key.required_when_on || !out.at(key.name).is_null()) continue;
      list(ProblemKind::kError, place.child(key.name, key.name),
           str_cat("missing; ", place.child(table.gate, table.gate).shown, " is ", show_value(gate),
                   ", so give ", describe_types(key, /*with_null=*/false)));
    }
  }

  // What is given in the place of "auto": a value, or nothing when the key counts as absent.
  std::optional<Given> resolve_auto(const KeyTable& table, Given one) {
    const Key& key = *one.key;
    if (!one.value->is_string() || one.value->get_ref<const std::string&>() != "auto") return one;
    for (const auto& spellings : key.choices) {
      if (spellings[0] == "auto") return one;
    }
    const bool any_text = (key.types & kString) && key.choices.empty();
    if (any_text || (key.types & kAnyType)) {
      // The word is a text like another, except where the key's table says that it is not.
      if (!table.auto_is_default) return one;
    }
    if (options_.resolver == nullptr) {
      if (table.auto_is_default && !key.required && !key.caller_decides) return std::nullopt;
      list_auto(one.place, explain_auto(key));
      return std::nullopt;
    }
    AutoOutcome outcome = options_.resolver->resolve(one.place.canonical);
    if (outcome.kind == AutoOutcome::Kind::kAbsent && !key.required) {
      out_.auto_paths.insert(one.place.canonical);
      return std::nullopt;
    }
    if (outcome.kind != AutoOutcome::Kind::kValue) {
      list_auto(one.place, outcome.text.empty() ? explain_auto(key) : outcome.text);
      return std::nullopt;
    }
    owned_.push_back(std::move(outcome.value));
    one.value = &owned_.back();
    one.origin = "auto";
    return one;
  }

  void list_auto(const Place& place, const std::string& text) {
    list(ProblemKind::kAuto, place, text);
  }

  void list_unknown(const KeyTable& table, const Json& object, const std::string& name,
                    const Place& place) {
    const Place here = place.child(name, name);
    if (is_comment_key(name)) {
      if (options_.lenient) {
        list(ProblemKind::kIgnored, here, "a comment");
        return;
      }
      list(ProblemKind::kError, here,
           "unknown key; lenient reading passes over keys that begin with _, # or //");
      return;
    }
    UnknownKey unknown = explain_unknown_key(root_, table, place.canonical, name);
    if (options_.lenient && table.ignores_unknown && unknown.meant.empty()) {
      list(ProblemKind::kIgnored, here, "DeepSpeed does not know this key and passes over it");
      return;
    }
    list(ProblemKind::kError, here, unknown.text);
    // Their values are not what the document says, unless it gives them besides.
    for (const auto& [given, value] : object.items()) {
      unknown.meant.erase(place.canonical + "/" + pointer_token(given));
    }
    out_.failed.merge(unknown.meant);
  }

  // ---- values ----

  Json parse_value(const Key& key, const Json& value, const Place& place, const std::string& origin,
                   const KeyTable* table) {
    if (value.is_null() && (key.types & (kNull | kAnyType))) return leaf(value, place, origin);
    if (key.types & kAnyType) return leaf(value, place, origin);
    if (table != nullptr && value.is_boolean() && !key.bool_sets.empty()) {
      warn(place, "a bare boolean is deprecated; give an object with \"", key.bool_sets, "\"");
      Json object = Json::object();
      append(object, key.bool_sets, value.get<bool>() ? 1 : 0);
      return parse_table(*table, object, place, "deprecated:" + place.canonical);
    }
    if (table != nullptr && value.is_object()) {
      return parse_object_value(key, value, place, origin, table);
    }
    if (value.is_array() && (key.types & kList)) {
      return leaf(parse_list(key, value, place), place, origin);
    }
    if (value.is_string() && key.string_is_list) return leaf(Json::array({value}), place, origin);
    const ScalarResult scalar = read_scalar(key, value, typed_);
    if (!scalar.error.empty()) reject(place, scalar.error);
    return leaf(scalar.value, place, origin);
  }

  Json parse_object_value(const Key& key, const Json& value, const Place& place,
                          const std::string& origin, const KeyTable* table) {
    if (recording_ && !origin.empty()) out_.given_objects.insert(place.canonical);
    if (!key.free_names) {
      if (value.empty() && table->keys.empty()) record(place, origin);
      return parse_table(*table, value, place, origin);
    }
    Json out = Json::object();
    if (value.empty()) record(place, origin);
    for (const auto& [name, item] : value.items()) {
      const Place here = place.child(name, name);
      if (!item.is_object()) reject(here, "expected an object, got ", show_value(item));
      append(out, name, parse_table(*table, item, here, origin));
    }
    return out;
  }

  Json parse_list(const Key& key, const Json& list, const Place& place) {
    const bool few = list.size() < key.min_items;
    if (few || list.size() > key.max_items) {
      const char* bound = key.min_items == key.max_items ? "" : few ? "at least " : "at most ";
      reject(place, "expected ", bound, few ? key.min_items : key.max_items, " items, got ",
             list.size());
    }
    Json out = Json::array();
    std::set<std::string> seen;
    const bool outer = std::exchange(recording_, false);  // a list has one origin, as a whole
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string index = std::to_string(i);
      Json item =
          parse_value(*key.item, list[i], place.child(index, index), "", key.item->table.get());
      if (!key.unique || seen.insert(dump_json(item)).second) out.push_back(std::move(item));
    }
    recording_ = outer;
    return out;
  }

  // ---- bookkeeping ----

  Json leaf(Json value, const Place& place, const std::string& origin) {
    record(place, origin);
    return value;
  }
  void record(const Place& place, const std::string& origin) {
    if (recording_ && !origin.empty()) out_.origins[place.canonical] = origin;
  }
  template <class... Parts>
  void warn(const Place& place, const Parts&... parts) {
    out_.warnings.push_back(str_cat(options_.what, ": ", place.shown, ": ", parts...));
  }

  const KeyTable& root_;
  const ParseOptions& options_;
  ParsedObject out_;
  std::deque<Json> owned_;
  bool recording_ = true;
  bool typed_ = false;  // the value that is read stands in a typed section
};

}  // namespace

ParsedObject parse_object(const KeyTable& table, const Json& value, const ParseOptions& options) {
  return Parser(table, options).run(value);
}

}  // namespace ds
