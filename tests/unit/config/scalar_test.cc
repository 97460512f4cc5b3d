// Booleans, numbers and their texts at the edges of what is accepted.
#include "config/scalar.h"

#include <gmock/gmock.h>

#include <limits>

namespace ds {
namespace {

using testing::HasSubstr;

Key a_number() { return keys::number("x", 1.0, ""); }
Key an_integer() { return keys::integer("n", 1, ""); }

// The value that a typed section or a numeric text gives; the error where it is refused.
Json typed(const Key& key, const Json& value) {
  const ScalarResult result = read_scalar(key, value, /*typed=*/true);
  return result.error.empty() ? result.value : Json("refused: " + result.error);
}
bool refuses(const Key& key, const Json& value) {
  return !read_scalar(key, value, /*typed=*/true).error.empty();
}

TEST(Scalar, IntegersGivenAsRealNumbersEndBelowTwoToThe63) {
  EXPECT_EQ(typed(an_integer(), Json(0x1p62)), int64_t{1} << 62);
  EXPECT_EQ(typed(an_integer(), Json(-0x1p62)), -(int64_t{1} << 62));
  const double last = 0x1p63 - 1024;  // of the numbers below
  EXPECT_EQ(typed(an_integer(), Json(last)), INT64_MAX - 1023);
  EXPECT_THAT(read_scalar(an_integer(), Json(0x1p63)).error, HasSubstr("does not fit 64 bits"));
  EXPECT_THAT(read_scalar(an_integer(), Json(0x1p64)).error, HasSubstr("does not fit 64 bits"));
}

TEST(Scalar, NumbersAreFinite) {
  for (const double number :
       {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(read_scalar(a_number(), Json(number)).error, HasSubstr("is not finite"));
  }
}

TEST(Scalar, NumericTextIsANumberAndNothingElse) {
  const Key key = a_number().or_numeric_text();
  for (const char* text : {"3", "-3", "0.5", "1e3", "9", "0"}) {
    EXPECT_EQ(read_scalar(key, Json(text)).value, std::stod(text)) << text;
  }
  for (const char* text : {"", " ", " 3", "3 ", "\t3", "3\n", "3x", "nan", "0x10", "+3", "1e999",
                           "true", "null", "\"3\"", "[3]"}) {
    EXPECT_FALSE(read_scalar(key, Json(text)).error.empty()) << text;
  }
}

TEST(Scalar, TypedSectionsReadTextAsWhatItsKeyIs) {
  EXPECT_EQ(typed(an_integer(), "10"), 10);  // the last digits of the range
  EXPECT_EQ(typed(an_integer(), "-9"), -9);
  EXPECT_EQ(typed(a_number(), "0.5"), 0.5);
  EXPECT_EQ(typed(a_number(), "7"), 7.0);
  for (const char* text : {"", "1.5", "1 ", "1/", "1:", "ten", "1e"}) {
    EXPECT_TRUE(refuses(an_integer(), text)) << text;
  }
  for (const char* text : {"", "0.5 ", "nan", "x1"}) EXPECT_TRUE(refuses(a_number(), text)) << text;
  const Key flag = keys::flag("f", false, "");
  for (const char* yes : {"true", "Yes", "ON", "t", "y", "1"}) EXPECT_EQ(typed(flag, yes), true);
  for (const char* no : {"False", "no", "off", "F", "n", "0"}) EXPECT_EQ(typed(flag, no), false);
  for (const char* word : {"", "2", "maybe", "tru"}) EXPECT_TRUE(refuses(flag, word)) << word;
  // Elsewhere text is no number.
  EXPECT_FALSE(read_scalar(an_integer(), "10").error.empty());
  EXPECT_FALSE(read_scalar(flag, "true").error.empty());
}

}  // namespace
}  // namespace ds
