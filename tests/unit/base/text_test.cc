// Text helpers, errors and the log sink.
#include "base/text.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "fresh_seed.h"

namespace ds {
namespace {

// Parts of a message are written as a std::ostream writes them.
template <class T>
void expect_streams_text(T value) {
  std::ostringstream out;
  out << value;
  EXPECT_EQ(str_cat(value), out.str());
}

TEST(Text, PartsAreWrittenAsByStreams) {
  EXPECT_EQ(str_cat("a ", std::string("b "), std::string_view("c "), 'd', ' ', true, false, -1),
            "a b c d 10-1");
  EXPECT_EQ(str_cat(std::string("\0x", 2)), std::string("\0x", 2));
  EXPECT_EQ(str_cat(static_cast<const char*>(nullptr)), "(null)");
  const int object = 0;
  expect_streams_text(static_cast<const void*>(&object));
  expect_streams_text(static_cast<const void*>(nullptr));
  std::mt19937_64 random(fresh_seed());
  using Limits = std::numeric_limits<double>;
  for (const double value : {0.0, -0.0, 1.0, 1e6, 999999.5, 1e-5, Limits::infinity(),
                             Limits::denorm_min(), Limits::max(), Limits::quiet_NaN()}) {
    expect_streams_text(value);
    expect_streams_text(-value);
    expect_streams_text(static_cast<float>(value));
  }
  for (int i = 0; i < 2000; ++i) {
    const uint64_t bits = random() >> random() % 64;
    expect_streams_text(static_cast<int>(bits));
    expect_streams_text(static_cast<uint32_t>(bits));
    expect_streams_text(static_cast<int64_t>(bits));
    expect_streams_text(bits);
    expect_streams_text(static_cast<uint16_t>(bits));
    expect_streams_text(std::bit_cast<double>(random()));
    expect_streams_text(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
}

TEST(Text, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("abcd", "abdc"), 1);  // transposition
  EXPECT_EQ(edit_distance("Stage", "stage"), 0);
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // optimal string alignment, not full Damerau
}

TEST(Text, NearestNameIsPlausibleOrEmpty) {
  const std::vector<std::string> keys = {"train_batch_size", "gradient_clipping", "fp16", "bf16"};
  EXPECT_EQ(nearest_name("train_batchsize", keys), "train_batch_size");
  EXPECT_EQ(nearest_name("gradient_cliping", keys), "gradient_clipping");
  EXPECT_EQ(nearest_name("zero_optimization", keys), "");
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), keys), "");
}

TEST(Text, Utf8) {
  for (const char* good : {"", "ascii", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                           "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(is_valid_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x80\x80", "\xED\xA0\x80",
                          "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3",
                          "\xE2\x82", "\xF0\x9F\x98", "a\xFFz", "\xC3("}) {
    EXPECT_FALSE(is_valid_utf8(bad)) << printable(bad);
  }
}

TEST(Text, PrintableIsOneSafeLine) {
  EXPECT_EQ(printable("plain ä"), "plain ä");
  EXPECT_EQ(printable("a\nb\x1b\x7f\xff"), "a\\x0ab\\x1b\\x7f\\xff");
  EXPECT_EQ(printable(std::string(200, 'x'), 10), std::string(10, 'x') + "...");
  EXPECT_EQ(printable("1234567890", 10), "1234567890");
  // Random bytes come out as valid UTF-8 without control characters.
  std::mt19937 random(ds::fresh_seed());
  for (int round = 0; round < 200; ++round) {
    std::string bytes(random() % 60, ' ');
    for (char& c : bytes) c = static_cast<char>(random());
    const std::string safe = printable(bytes, 1000);
    EXPECT_TRUE(is_valid_utf8(safe));
    for (const char c : safe) EXPECT_FALSE(static_cast<unsigned char>(c) < 0x20 || c == 0x7F);
  }
}

TEST(Text, NumbersReadBackAsWritten) {
  EXPECT_EQ(format_number(3), "3");
  EXPECT_EQ(format_number(-0.5), "-0.5");
  EXPECT_EQ(format_number(1e-5), "1e-05");
  EXPECT_EQ(format_number(0.1), "0.1");
  std::mt19937_64 random(ds::fresh_seed());
  for (int i = 0; i < 1000; ++i) {
    const double value = std::bit_cast<double>(random());
    if (std::isfinite(value)) {
      EXPECT_EQ(std::strtod(format_number(value).c_str(), nullptr), value);
    }
  }
}

TEST(Text, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(int64_t{3} << 30), "3.00 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8388608.00 TiB");
}

TEST(Text, JoinAndCase) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({"a", "b"}, ", "), "a, b");
  EXPECT_EQ(to_lower_ascii("AbZ\xC3\x84"), "abz\xC3\x84");
  EXPECT_TRUE(starts_with_ignore_case("AdamW", "adam"));
  EXPECT_FALSE(starts_with_ignore_case("Ad", "adam"));
  EXPECT_EQ(str_cat("n = ", 3, ", x = ", 0.5), "n = 3, x = 0.5");
}

TEST(Error, ChecksEvaluateTheMessageOnFailureOnly) {
  int evaluated = 0;
  const auto part = [&] {
    ++evaluated;
    return "text";
  };
  DS_CHECK(true, Code::kInternal, part());
  EXPECT_EQ(evaluated, 0);
  try {
    DS_CHECK(1 > 2, Code::kUnsupported, "no ", part(), " ", 7);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_STREQ(error.what(), "no text 7");
  }
  EXPECT_EQ(evaluated, 1);
}

struct Sink {
  std::atomic<int> lines{0}, released{0};
  std::string last, component;
};

TEST(Log, GoesToTheSinkUntilItIsReplaced) {
  Sink a, b;
  const LogFn collect = [](void* user, int32_t level, const char* component, const char* text) {
    auto* sink = static_cast<Sink*>(user);
    EXPECT_EQ(level, static_cast<int32_t>(LogLevel::kWarning));
    ++sink->lines;
    sink->last = text;
    sink->component = component;
  };
  const LogRelease release = [](void* user) { ++static_cast<Sink*>(user)->released; };
  log_set_sink(collect, &a, release);
  log_warning("data", "file ", 3, " is odd");
  log_info("data", "below the level");
  EXPECT_EQ(a.lines, 1);
  EXPECT_EQ(a.last, "file 3 is odd");
  EXPECT_EQ(a.component, "data");
  log_set_sink(collect, &b, release);
  EXPECT_EQ(a.released, 1);
  log_warning("x", "y");
  EXPECT_EQ(a.lines, 1);
  EXPECT_EQ(b.lines, 1);
  log_set_level(LogLevel::kOff);
  log_warning("x", "y");
  EXPECT_EQ(b.lines, 1);
  log_set_level(LogLevel::kWarning);
  log_set_sink(nullptr, nullptr, nullptr);
  EXPECT_EQ(b.released, 1);
}

TEST(Log, SinksMayBeReplacedWhileOthersLog) {
  std::atomic<int> lines{0}, released{0};
  struct Counters {
    std::atomic<int>*lines, *released;
  };
  const LogFn count = [](void* user, int32_t, const char*, const char*) {
    ++*static_cast<Counters*>(user)->lines;
  };
  const LogRelease release = [](void* user) {
    auto* counters = static_cast<Counters*>(user);
    ++*counters->released;
    delete counters;  // a sink used after its release would touch freed memory
  };
  log_set_sink(count, new Counters{&lines, &released}, release);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 300; ++i) log_warning("test", i);
    });
  }
  for (int i = 0; i < 100; ++i) log_set_sink(count, new Counters{&lines, &released}, release);
  for (std::thread& thread : threads) thread.join();
  log_set_sink(nullptr, nullptr, nullptr);
  EXPECT_EQ(lines.load(), 900);
  EXPECT_EQ(released.load(), 101);
}

}  // namespace
}  // namespace ds
