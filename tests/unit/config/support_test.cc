// Properties over the whole key table: what the build lacks is refused by name, what is off asks
// for nothing, and every key checks its type.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/text.h"

#include "config/config.h"
#include "config/config_table.h"
#include "unit/config/samples.h"

namespace ds {
namespace {

using testing::HasSubstr;
using testing_support::minimal_object;
using testing_support::other_value;
using testing_support::Visit;
using testing_support::visit_all_keys;

std::string refusal_of(const Json& document) {
  ParsedObject parsed = parse_object(config_table(), document);
  try {
    refuse_lacking(config_table(), parsed);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kConfig);
    return error.message();
  }
  return "";
}

std::string load_error(Json document) {
  if (!document.contains("elasticity")) document["train_batch_size"] = 8;
  try {
    load_config(dump_json(document));
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Support, EveryLackingKeyIsRefusedByName) {
  int refused = 0;
  visit_all_keys(config_table(), [&](const Visit& visit) {
    if (visit.key.lacking.empty()) return;
    const Json value = other_value(visit.key);
    ASSERT_FALSE(value.is_null()) << visit.path << ": no value asks for what is lacking";
    Json object = minimal_object(visit.table);
    for (const std::string& gate : visit.gates) {
      if (gate == visit.path.substr(0, visit.path.rfind('/') + 1) + visit.table.gate) {
        object = minimal_object(visit.table, true);
      }
    }
    object[visit.key.name] = value;
    const Json document = visit.open_document(object);
    SCOPED_TRACE(dump_json(document));
    const std::string message = refusal_of(document);
    EXPECT_THAT(message, HasSubstr("which this build does not have"));
    // An open gate above may be what is refused first.
    bool named = message.find(visit.path + ": ") != std::string::npos;
    for (const std::string& gate : visit.gates) {
      named = named || message.find(gate + ": ") != std::string::npos;
    }
    // A variant is refused with the sibling that chooses it.
    named = named || message.find("/optimizer/type: ") != std::string::npos;
    named = named || message.find("/offload_") != std::string::npos;
    EXPECT_TRUE(named) << visit.path << "\n" << message;
    // Below stage 3 the offload of parameters is passed over, as DeepSpeed does.
    if (visit.path.find("/offload_param") == std::string::npos) {
      EXPECT_NE(load_error(document), "");
    }
    ++refused;
  });
  EXPECT_GT(refused, 60);
}

TEST(Support, UngatedLackingKeysAreNamedThemselves) {
  int refused = 0;
  visit_all_keys(config_table(), [&](const Visit& visit) {
    const bool is_gate =
        !visit.gates.empty() && visit.gates.size() == 1 && visit.gates[0] == visit.path;
    if (visit.key.lacking.empty() || !(visit.gates.empty() || is_gate)) return;
    if (visit.path.rfind("/optimizer/params/", 0) == 0) return;  // see the optimizer test
    Json object = minimal_object(visit.table, is_gate);
    object[visit.key.name] = other_value(visit.key);
    EXPECT_THAT(refusal_of(visit.document(object)), HasSubstr(visit.path + ": "));
    ++refused;
  });
  EXPECT_GT(refused, 50);
}

// What an unknown word is answered with are words that work.
TEST(Support, UnknownOptimizersLearnOfThoseThatAreHere) {
  Json document;
  document["optimizer"]["type"] = "AdamX";
  const std::string message = load_error(document);
  for (const char* here : {"Adam", "AdamW", "Lamb", "Lion", "Adagrad", "Muon", "SGD", "NAdam",
                           "RMSprop", "MuAdam", "MuAdamW", "MuSGD"}) {
    EXPECT_THAT(message, HasSubstr(str_cat('"', here, '"')));
    document["optimizer"]["type"] = here;
    EXPECT_EQ(load_error(document), "");
  }
  for (const char* lacking : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}) {
    EXPECT_THAT(message, testing::Not(HasSubstr(lacking)));
  }
}

TEST(Support, ClosedGatesAskForNothing) {
  int checked = 0;
  visit_all_keys(config_table(), [&](const Visit& visit) {
    if (visit.table.gate.empty() || visit.key.name == visit.table.gate) return;
    if (visit.key.refused_always || visit.key.deprecated) return;
    if (visit.key.table && visit.key.table->gate_always) return;
    const Json value = other_value(visit.key);
    if (value.is_null()) return;
    Json object = minimal_object(visit.table);
    object[visit.key.name] = value;
    const std::string message = refusal_of(visit.document(object));
    // Sections that are refused by their presence stay refused.
    if (visit.path.find("/sparse_attention") == 0) return;
    EXPECT_EQ(message, "") << visit.path;
    ++checked;
  });
  EXPECT_GT(checked, 150);
}

TEST(Support, EveryKeyChecksItsType) {
  int rejected = 0;
  visit_all_keys(config_table(), [&](const Visit& visit) {
    const Key& key = visit.key;
    if (key.types & kAnyType) return;
    const std::pair<unsigned, Json> values[] = {{kBool, true},
                                                {kInt, Json(1)},
                                                {kNumber, Json(0.3125)},
                                                {kString, Json("no such word")},
                                                {kList, Json::array({Json::array()})},
                                                {kObject, Json{{"no such key", 1}}},
                                                {kNull, Json()}};
    for (const auto& [type, value] : values) {
      if (type == kInt && (key.types & kNumber)) continue;
      if (type == kNull && !(key.types & kNull)) {
      } else if (type == kBool && !key.bool_sets.empty()) {
        continue;
      } else if (type == kString && key.string_is_list) {
        continue;
      } else if (key.types & type) {
        // Right type: wrong all the same for choices, list items and objects.
        const bool wrong = (type == kString && !key.choices.empty()) ||
                           (type == kList && key.item) ||
                           (type == kObject && !(key.table && key.table->other_keys));
        if (!wrong) continue;
      }
      Json object = minimal_object(visit.table);
      object[key.name] = value;
      try {
        parse_object(config_table(), visit.document(object));
        ADD_FAILURE() << visit.path << " accepted " << dump_json(value);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kConfig);
        EXPECT_THAT(error.message(), HasSubstr(visit.path)) << dump_json(value);
        ++rejected;
      }
    }
  });
  EXPECT_GT(rejected, 2000);
}

TEST(Support, ExplicitDefaultsAreAccepted) {
  int accepted = 0;
  visit_all_keys(config_table(), [&](const Visit& visit) {
    if (visit.key.required || visit.key.deprecated) return;
    if (visit.key.default_value.is_object() && !visit.key.free_names) return;
    Json object = minimal_object(visit.table);
    object[visit.key.name] = visit.key.default_value;
    EXPECT_NO_THROW(parse_object(config_table(), visit.document(object))) << visit.path;
    ++accepted;
  });
  EXPECT_GT(accepted, 400);
}

}  // namespace
}  // namespace ds
