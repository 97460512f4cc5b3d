// How a parameter may be cut among the ranks that compute a layer together. A layer declares the
// rule beside its parameters, from its own sizes alone; what a rank then holds says ShardSpec.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace ds {

struct SplitRule {
  enum class Kind {
    kWhole,       // every rank has all of it
    kRows,        // dimension 0: weight [out, in] and bias of a column-parallel linear layer
    kColumns,     // dimension 1: weight [out, in] of a row-parallel linear layer
    kVocabulary,  // dimension 0, padded to what the ranks can share equally
  };
  // Rows or columns that are dealt by themselves: the queries of a fused projection, say. A unit is
  // what stays on one rank, such as a head.
  struct Section {
    int64_t units = 0;
    int64_t unit_size = 1;  // rows or columns
    // Where there are fewer units than ranks, so many consecutive ranks hold the same one: heads of
    // keys and values, which several heads of queries read. Of rows alone.
    bool repeats = false;
  };

  Kind kind = Kind::kWhole;
  std::vector<Section> sections = {};  // empty: one, of single rows or columns
  int64_t multiple = 1;  // kVocabulary: each of several ranks has a multiple of so many rows
  // Experts of the layer, 0 where there are none. Unless the parameter is that of one expert
  // alone, its dimension 0 counts them and the rule speaks of the dimensions after it.
  int64_t experts = 0;

  static SplitRule whole() { return {}; }
  static SplitRule rows() { return {Kind::kRows}; }
  static SplitRule columns() { return {Kind::kColumns}; }
  // Rows in units, section after section: {{q, d}, {kv, d}, {kv, d}} for q, k and v one after
  // another, {{kv, (q / kv + 2) * d}} where each group of queries stands beside its key and value.
  // With {kv, d, true} more ranks than heads of keys and values can share the layer.
  static SplitRule head_rows(std::vector<Section> sections) {
    return {Kind::kRows, std::move(sections)};
  }
  // Of the layer that reads what heads make.
  static SplitRule head_columns(std::vector<Section> sections) {
    return {Kind::kColumns, std::move(sections)};
  }
  static SplitRule vocabulary(int64_t multiple = 1) { return {Kind::kVocabulary, {}, multiple}; }
  SplitRule of_experts(int64_t count) const {
    SplitRule rule = *this;
    rule.experts = count;
    return rule;
  }
  // That of the bias [out] of a weight [out, in] with this rule: a row-parallel layer adds it to
  // the sum, once.
  SplitRule of_bias() const { return kind == Kind::kColumns ? whole().of_experts(experts) : *this; }
  // Those of a low-rank update b [out, rank] a [rank, in] of the weight.
  SplitRule of_adapter_a() const {
    return kind == Kind::kColumns ? *this : whole().of_experts(experts);
  }
  SplitRule of_adapter_b() const { return of_bias(); }
};

}  // namespace ds
