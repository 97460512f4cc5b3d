#include "mesh/shard_spec.h"

#include <algorithm>

#include "base/error.h"

namespace ds {
namespace {

using Kind = SplitRule::Kind;

// The ranks that share one dimension equally, and the place of this one among them.
struct Sharers {
  int count = 1;
  int place = 0;
  std::string_view axis;
};

// What a rank holds along one dimension.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int copies = 1;
  bool first_copy = true;
};
struct Dealt {
  std::vector<Range> ranges;
  int64_t local = 0;  // size, with padding
};

std::string subject(const ShardRequest& request) {
  return str_cat("parameter ", printable(request.name), " of ", request.shape.text());
}

Dealt deal(const ShardRequest& request, int64_t size,
           const std::vector<SplitRule::Section>& declared, const Sharers& ranks) {
  const std::vector<SplitRule::Section> sections =
      declared.empty() ? std::vector<SplitRule::Section>{{size, 1}} : declared;
  Dealt dealt;
  int64_t begin = 0;
  for (const SplitRule::Section& section : sections) {
    DS_CHECK(section.units >= 0 && section.unit_size >= 1 &&
                 section.units <= (size - begin) / section.unit_size,
             Code::kInvalidArgument, subject(request),
             ": the sections of its split rule have more ", "than the ", size,
             " rows or columns that are to be cut");
    const bool repeats = section.repeats && section.units > 0 && section.units < ranks.count &&
                         ranks.count % section.units == 0;
    DS_CHECK(repeats || section.units % ranks.count == 0, Code::kConfig, subject(request), ": the ",
             ranks.count, " ranks of the ", ranks.axis, " axis cannot share ", section.units,
             " units of ", section.unit_size,
             " (heads, or single rows or columns) equally; choose a size that divides them",
             section.repeats ? ", or a multiple of them" : "");
    const int copies = repeats ? ranks.count / static_cast<int>(section.units) : 1;
    const int64_t part =
        repeats ? section.unit_size : section.units / ranks.count * section.unit_size;
    if (part > 0) {
      const int64_t at = begin + ranks.place / copies * part;
      dealt.ranges.push_back({at, at + part, copies, ranks.place % copies == 0});
    }
    dealt.local += part;
    begin += section.units * section.unit_size;
  }
  DS_CHECK(begin == size, Code::kInvalidArgument, subject(request),
           ": the sections of its split rule have ", begin, " of ", size, " rows or columns");
  return dealt;
}

Dealt deal_padded(const ShardRequest& request, int64_t size, const Sharers& ranks) {
  const int64_t multiple = request.rule.multiple;
  DS_CHECK(multiple >= 1 && multiple <= int64_t{1} << 32, Code::kInvalidArgument, subject(request),
           ": a vocabulary cannot be padded to a multiple of ", multiple);
  if (ranks.count == 1) return {{{0, size}}, size};
  const int64_t step = multiple * ranks.count;
  const int64_t part = (size + step - 1) / step * multiple;
  const int64_t begin = std::min(ranks.place * part, size), end = std::min(begin + part, size);
  Dealt dealt;
  if (begin < end) dealt.ranges.push_back({begin, end});
  dealt.local = part;
  return dealt;
}

// A rank holds a number of boxes, of which all but the ranges along one dimension are whole.
class Cutter {
 public:
  explicit Cutter(const Shape& shape)
      : sizes_(shape.sizes().begin(), shape.sizes().end()), boxes_{{full_box(shape.sizes()), {}}} {
    boxes_[0].local_offset.assign(sizes_.size(), 0);
  }

  void cut(size_t dim, const Dealt& dealt) {
    std::vector<ShardBox> cut;
    for (const ShardBox& box : boxes_) {
      int64_t at = 0;
      for (const Range& range : dealt.ranges) {
        ShardBox part = box;
        part.global.offset[dim] = range.begin;
        part.global.extent[dim] = range.end - range.begin;
        part.copies *= range.copies;
        part.first_copy = part.first_copy && range.first_copy;
        part.local_offset[dim] = at;
        at += range.end - range.begin;
        cut.push_back(std::move(part));
      }
    }
    boxes_ = std::move(cut);
    sizes_[dim] = dealt.local;
  }

  void drop() {
    boxes_.clear();
    if (!sizes_.empty()) sizes_[0] = 0;
  }

  void finish(ShardSpec& spec) {
    spec.local = Shape(sizes_);
    spec.boxes = std::move(boxes_);
    std::erase_if(spec.boxes, [](const ShardBox& box) { return box.global.elements() == 0; });
  }

 private:
  std::vector<int64_t> sizes_;
  std::vector<ShardBox> boxes_;
};

Sharers sharers(const MeshShape& mesh, MeshAxis axis, int rank) {
  return {mesh.size(axis), mesh.coordinate(axis, rank), mesh_axis_name(axis)};
}

void check_request(const ShardRequest& request) {
  const SplitRule& rule = request.rule;
  const bool stacked = rule.experts > 0 && request.expert < 0;
  const int first = stacked ? 1 : 0;
  const int needed = first + (rule.kind == Kind::kWhole ? 0 : rule.kind == Kind::kColumns ? 2 : 1);
  DS_CHECK(request.shape.dims() >= needed, Code::kInvalidArgument, subject(request),
           ": its split rule needs at least ", needed, " dimensions");
  DS_CHECK(rule.experts >= 0 && request.expert < std::max<int64_t>(rule.experts, 0),
           Code::kInvalidArgument, subject(request), ": expert ", request.expert, " of ",
           rule.experts, " experts");
  const bool repeats = std::ranges::any_of(rule.sections, &SplitRule::Section::repeats);
  DS_CHECK(!repeats || (rule.kind == Kind::kRows && !stacked), Code::kInvalidArgument,
           subject(request), ": ranks hold the same units of rows alone");
  DS_CHECK(!stacked || request.shape[0] == rule.experts, Code::kInvalidArgument, subject(request),
           ": dimension 0 is to hold ", rule.experts, " experts");
}

// Ascending, and such that a group of the mesh joins them.
std::vector<int> checked_stages(const ShardRequest& request, const MeshShape& mesh) {
  const int pipeline = mesh.size(MeshAxis::kPipeline);
  std::vector<int> stages = request.stages;
  for (int stage = 0; request.stages.empty() && stage < pipeline; ++stage) stages.push_back(stage);
  for (size_t i = 0; i < stages.size(); ++i) {
    const int stage = stages[i];
    DS_CHECK(stage >= 0 && stage < pipeline && (i == 0 || stages[i - 1] < stage),
             Code::kInvalidArgument, subject(request), ": stage ", stage,
             " is out of order or none of the ", pipeline, " stages of the pipeline");
  }
  const bool ends = stages.size() == 2 && stages.front() == 0 && stages.back() == pipeline - 1;
  DS_CHECK(stages.size() == 1 || ends || static_cast<int>(stages.size()) == pipeline,
           Code::kUnsupported, subject(request), ": no group joins the ", stages.size(),
           " stages that have it; one, the first and the last, or all can share a parameter");
  return stages;
}

// Experts of the rank's place on the expert axis: a part of dimension 0, or all or nothing of a
// parameter that belongs to one.
void cut_experts(const ShardRequest& request, const Sharers& ranks, Cutter& cutter) {
  const int64_t experts = request.rule.experts;
  DS_CHECK(experts % ranks.count == 0, Code::kConfig, subject(request), ": the ", ranks.count,
           " ranks of the ", ranks.axis, " axis cannot share ", experts,
           " experts equally; choose a size that divides them");
  const int64_t part = experts / ranks.count;
  if (request.expert < 0) {
    cutter.cut(0, {{{ranks.place * part, (ranks.place + 1) * part}}, part});
  } else if (request.expert / part != ranks.place) {
    cutter.drop();
  }
}

}  // namespace

ShardSpec make_shard_spec(const ShardRequest& request, const MeshShape& mesh, int rank) {
  using enum MeshAxis;
  check_request(request);
  const SplitRule& rule = request.rule;
  const bool expert = rule.experts > 0;
  ShardSpec spec;
  spec.global = request.shape;
  spec.parts = expert ? MeshGroup::kExpertTensor : MeshGroup::kTensor;
  spec.gradient = spec.state = expert ? MeshGroup::kExpertData : MeshGroup::kDataContext;
  const Sharers ranks = sharers(mesh, expert ? kExpertTensor : kTensor, rank);
  spec.cut = rule.kind != Kind::kWhole && ranks.count > 1;
  Cutter cutter(request.shape);
  if (rule.kind != Kind::kWhole) {
    const bool stacked = expert && request.expert < 0;
    const int dim = (stacked ? 1 : 0) + (rule.kind == Kind::kColumns ? 1 : 0);
    const int64_t size = request.shape[dim];
    cutter.cut(static_cast<size_t>(dim), rule.kind == Kind::kVocabulary
                                             ? deal_padded(request, size, ranks)
                                             : deal(request, size, rule.sections, ranks));
  }
  if (expert) cut_experts(request, sharers(mesh, kExpert, rank), cutter);
  const std::vector<int> stages = checked_stages(request, mesh);
  const int stage = mesh.coordinate(kPipeline, rank);
  if (!std::ranges::binary_search(stages, stage)) cutter.drop();
  cutter.finish(spec);

  if (stages.size() == 2) spec.tied = MeshGroup::kEmbedding;
  if (stages.size() > 2) spec.tied = MeshGroup::kPipeline;
  spec.replicas = std::ssize(stages) * mesh.size(spec.gradient) * (spec.cut ? 1 : ranks.count);
  spec.primary = spec.held() && stage == stages.front() &&
                 mesh.index_in(spec.gradient, rank) == 0 && (spec.cut || ranks.place == 0);
  return spec;
}

}  // namespace ds
