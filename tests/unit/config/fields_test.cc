// Values of a parsed object go to the fields that the rows of its table name.
#include "config/key_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "config/config_table.h"
#include "config/parse.h"

namespace ds {
namespace {

using namespace keys;

enum class Colour { kRed, kGreen };

struct Inner {
  int64_t count = 7;
  std::string name = "none";
};
struct Outer {
  double rate = 0.5;
  int small = 0;
  bool on = false;
  std::optional<int64_t> maybe;
  std::vector<int> list;
  Colour colour = Colour::kRed;
  bool green = false;
  double low = 0, high = 0;
  Inner inner;
  std::optional<Inner> rest;
  std::vector<Inner> items;
  int64_t shared = 0;
};

KeyTable inner_table() {
  return table("", {integer("count", 0, "").to(&Inner::count),
                    text("name", std::nullopt, "").to(&Inner::name)});
}

KeyTable outer_table() {
  Key item = any_text();
  item.types = kObject;
  item.table = std::make_shared<const KeyTable>(inner_table());
  return table("", {number("rate", 1.0, "").to(&Outer::rate),
                    integer("small", 0, "").to(&Outer::small), flag("on", false, "").to(&Outer::on),
                    integer("maybe", std::nullopt, "").to(&Outer::maybe),
                    list("list", any_integer(), "[]", "").to(&Outer::list),
                    choice("colour", {"red|rouge", "green"}, "red", "")
                        .chooses(std::vector{Colour::kRed, Colour::kGreen}, &Outer::colour),
                    choice("shade", {"red", "green"}, std::nullopt, "")
                        .chooses(std::vector{false, true}, &Outer::green),
                    list("range", any_number(), "[1, 2]", "").items_to(&Outer::low, &Outer::high),
                    integer("deep", 3, "").to(&Outer::inner, &Inner::count),
                    optional_section("rest", inner_table().gated_by("count")).to(&Outer::rest),
                    list("items", std::move(item), "[]", "").to(&Outer::items),
                    section("open", table("", {integer("shared", 4, "").to(&Outer::shared)})),
                    integer("unread", 0, "")});
}

Outer read(const char* text) {
  const KeyTable rows = outer_table();
  return read_as<Outer>(rows, parse_object(rows, Json::parse(text)).values);
}

TEST(Fields, TakeDefaultsOfTheTableNotOfTheStruct) {
  const Outer out = read("{}");
  EXPECT_EQ(out.rate, 1.0);
  EXPECT_FALSE(out.maybe);
  EXPECT_EQ(out.low, 1);
  EXPECT_EQ(out.high, 2);
  EXPECT_EQ(out.inner.count, 3);
  EXPECT_EQ(out.inner.name, "none");  // no row leads there
  EXPECT_FALSE(out.rest);
  EXPECT_EQ(out.shared, 4);  // of a section without a field of its own
  EXPECT_FALSE(out.green);   // null is no choice
}

TEST(Fields, TakeGivenValues) {
  const Outer out = read(R"({"rate": 2, "on": true, "maybe": 5, "list": [3, 1], "colour": "rouge",
      "shade": "green", "range": [0.25, 8], "deep": 9, "rest": {"count": 2, "name": "b"},
      "items": [{"count": 1}, {"name": "c"}], "open": {"shared": 11}, "unread": 6})");
  EXPECT_EQ(out.rate, 2.0);
  EXPECT_TRUE(out.on);
  EXPECT_EQ(out.maybe, 5);
  EXPECT_THAT(out.list, ::testing::ElementsAre(3, 1));
  EXPECT_EQ(out.colour, Colour::kRed);
  EXPECT_TRUE(out.green);
  EXPECT_EQ(out.low, 0.25);
  EXPECT_EQ(out.high, 8);
  EXPECT_EQ(out.inner.count, 9);
  ASSERT_TRUE(out.rest);
  EXPECT_EQ(out.rest->count, 2);
  EXPECT_EQ(out.rest->name, "b");
  ASSERT_EQ(out.items.size(), 2u);
  EXPECT_EQ(out.items[0].count, 1);
  EXPECT_EQ(out.items[1].name, "c");
  EXPECT_EQ(out.shared, 11);
  EXPECT_EQ(read(R"({"colour": "green"})").colour, Colour::kGreen);
}

TEST(Fields, AnOptionalSectionIsUnsetWhileItsGateIsClosed) {
  EXPECT_FALSE(read(R"({"rest": {"name": "b"}})").rest);
  EXPECT_FALSE(read(R"({"rest": null})").rest);
  EXPECT_TRUE(read(R"({"rest": {"count": 1}})").rest);
}

TEST(Fields, NumbersBeyondAFieldStopAtItsBounds) {
  EXPECT_EQ(read(R"({"small": 4000000000})").small, INT32_MAX);
  EXPECT_EQ(read(R"({"small": -4000000000})").small, INT32_MIN);
}

// A section that shares its parent's object may not lead to fields of another struct.
TEST(Fields, RowsOfAnotherStructAreRefused) {
  const KeyTable rows = table("", {section("inner", inner_table())});
  try {
    read_as<Outer>(rows, parse_object(rows, Json::object()).values);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInternal);
    EXPECT_THAT(error.message(), ::testing::HasSubstr("count"));
  }
}

// Every section and every type of the document, so that no row of it leads to a wrong struct.
TEST(Fields, EveryVariantOfTheDocumentCanBeRead) {
  for (const char* type : {"optimizer", "scheduler"}) {
    const Key* const section = config_table().find(type);
    ASSERT_TRUE(section != nullptr && section->store);
    for (const auto& [name, rows] : section->table->find("params")->variants) {
      bool read_any = false;
      for (const Key& key : rows->keys) read_any |= static_cast<bool>(key.store);
      EXPECT_TRUE(read_any || rows->keys.empty()) << type << " " << name;
    }
  }
}

}  // namespace
}  // namespace ds
