// A number over the steps of a run, in bounded memory: as it was while there are few values, then
// as runs of neighbouring rows with their least, greatest and mean value. No extreme is lost.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "format.h"

namespace tool {

class Series {
 public:
  // Values that follow each other and are shown as one.
  struct Bucket {
    int64_t first = 0, last = 0;  // steps
    int64_t rows = 0;
    int64_t finite = 0;  // rows with a value
    double least = 0, most = 0, sum = 0;
  };

  explicit Series(size_t most_buckets = 1024) : most_buckets_(most_buckets) {}

  // The value of the next step; not finite: it has none.
  void add(int64_t step, double value);
  // Forgets the steps from this one on, because they are done again. Of a bucket that begins before
  // it the extremes stay.
  void rewind(int64_t step);

  bool empty() const { return buckets_.empty(); }
  const std::vector<Bucket>& buckets() const { return buckets_; }

  // {"x": [...], "y": [...]}, and "x1", "lo", "hi" where several rows are one point: first and last
  // steps, least and greatest values, "y" being their mean. null where no value is finite. "bad":
  // the points in which some value is not.
  Json document() const;
  // {"rows", "first", "last", "least", "most", "mean", "not_finite"} of the finite values; numbers
  // that there are not are null.
  Json summary() const;
  double sum() const;

 private:
  void halve();

  size_t most_buckets_;
  int64_t width_ = 1;  // rows of a full bucket
  std::vector<Bucket> buckets_;
  double first_value_ = 0, last_value_ = 0;
  bool has_value_ = false;
};

}  // namespace tool
