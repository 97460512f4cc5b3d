// Normalizers against Hugging Face's `tokenizers` (tests/parity/gen_normalizer_vectors.py), and
// documents that are no normalizers.
#include "tokenizer/normalizer.h"
#include "test_paths.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "tokenizer/time_limit.h"
#include "unit/base/expect_error.h"

namespace ds {
namespace {

Json normalizer_rows() {
  const auto path = test_data() / "tokenizers/normalizers.json";
  return parse_json(read_text_file(path), "normalizers", Code::kCorrupt);
}

std::string normalized(const Normalizer& normalizer, const std::string& text) {
  TimeLimit time(text.size());
  return normalizer.apply(text, time);
}

TEST(Normalizer, GivesTheTextsOfThePackage) {
  const Json rows = normalizer_rows();
  ASSERT_GE(rows.size(), 19u);
  for (const Json& row : rows) {
    const Normalizer normalizer(row.at("normalizer"), "a test");
    for (const Json& pair : row.at("texts")) {
      EXPECT_EQ(normalized(normalizer, pair.at(0).get<std::string>()),
                pair.at(1).get<std::string>())
          << row.at("name") << " of " << pair.at(0);
    }
  }
}

TEST(Normalizer, NoneLeavesTextAlone) {
  EXPECT_EQ(normalized(Normalizer(nullptr, "a test"), " A\u030a\r\n"), " A\u030a\r\n");
}

TEST(Normalizer, OddDocumentsAreNamed) {
  const auto refused = [](const char* text, Code code, const std::vector<std::string>& words) {
    SCOPED_TRACE(text);
    testing::expect_error(code, words, [&] { Normalizer(Json::parse(text), "a test"); });
  };
  refused(R"({"type": "Precompiled"})", Code::kUnsupported, {"a test", "Precompiled", "known are"});
  refused(R"({"type": 3})", Code::kCorrupt, {"a test", "type"});
  refused("{}", Code::kCorrupt, {"a test", "type"});
  refused("[]", Code::kCorrupt, {"a test"});
  refused(R"({"type": "Sequence"})", Code::kCorrupt, {"normalizers"});
  refused(R"({"type": "Sequence", "normalizers": [{"type": "Nmt"}]})", Code::kUnsupported, {"Nmt"});
  refused(R"({"type": "Strip", "strip_left": 1})", Code::kCorrupt, {"strip_left"});
  refused(R"({"type": "Prepend"})", Code::kCorrupt, {"prepend"});
  refused(R"({"type": "Replace", "content": ""})", Code::kCorrupt, {"pattern"});
  refused(R"({"type": "Replace", "pattern": {"String": "a"}})", Code::kCorrupt, {"content"});
  refused(R"({"type": "BertNormalizer", "lowercase": "no"})", Code::kCorrupt, {"lowercase"});
}

}  // namespace
}  // namespace ds
