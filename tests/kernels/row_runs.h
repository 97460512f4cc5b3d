// How programs run rows of the operator table: which of them, with which seeds, and what they
// report.
//
// DS_TEST_SEED=n repeats a run (a failure prints n); DS_TEST_CASE=text keeps the rows whose name
// contains the text. For tests/cuda/run_shards.py, which goes on where a row has ended the process:
// DS_TEST_TRACE_ROWS prints the name of each row before it runs, DS_TEST_SKIP_CASES=name,... leaves
// rows out.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>

#include "fresh_seed.h"
#include "kernels/all_cases.h"
#include "kernels/case_util.h"

namespace ds::testing {

// Every row draws its own numbers, the same whichever rows run.
inline uint64_t row_seed(const std::string& name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash ^ ds::run_seed();
}

// Whether a list with commas has the name.
inline bool is_listed(const std::string& name, const char* list) {
  return list != nullptr &&
         ("," + std::string(list) + ",").find("," + name + ",") != std::string::npos;
}

inline bool wanted(const OpCase& row) {
  if (is_listed(row.name, std::getenv("DS_TEST_SKIP_CASES"))) return false;
  const char* text = std::getenv("DS_TEST_CASE");
  return text == nullptr || row.name.find(text) != std::string::npos;
}

inline std::string hint(const OpCase& row) {
  return row.name + " (repeat with DS_TEST_SEED=" + std::to_string(ds::run_seed()) +
         " DS_TEST_CASE=" + row.name + ")";
}

// Rows that ran and the worst of what they found; prints both when it goes.
class RowReport {
 public:
  explicit RowReport(const CaseFamily& family) : name_(family.name) {}
  ~RowReport() {
    std::cout << name_ << ": " << rows_ << " rows, worst deviation " << worst_.worst
              << " of what is allowed, " << worst_.where << "\n";
  }
  RowReport(const RowReport&) = delete;
  RowReport& operator=(const RowReport&) = delete;

  void count() { ++rows_; }
  // One run of a row's check or gradient, which must compare something and find it right.
  template <class Run>
  void run(const OpCase& row, const Run& check, const OpContext& ctx) {
    static const bool trace = std::getenv("DS_TEST_TRACE_ROWS") != nullptr;
    if (trace) std::cout << "[ row      ] " << row.name << std::endl;
    start_digest();
    const CaseResult result = check(ctx, row_seed(row.name));
    EXPECT_GT(digest().tensors, 0) << hint(row) << ": compared nothing";
    EXPECT_LE(result.worst, 1.0) << hint(row) << ": " << result.where;
    worst_.merge(result.worst, row.name + ": " + result.where);
  }

 private:
  const char* name_;
  int rows_ = 0;
  CaseResult worst_;
};

inline void run_gradients(const CaseFamily& family, const OpContext& ctx) {
  RowReport report(family);
  for (const OpCase& row : family.cases()) {
    if (!row.gradient || !wanted(row)) continue;
    report.count();
    report.run(row, row.gradient, ctx);
  }
}

}  // namespace ds::testing
