#include "observe/profile_report.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <map>

namespace ds {
namespace {

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  std::va_list arguments, again;
  va_start(arguments, pattern);
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, pattern, arguments);
  va_end(arguments);
  std::string out(static_cast<size_t>(std::max(size, 0)), '\0');
  std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  va_end(again);
  return out;
}

const PhaseTotals& phase(const PhaseSums& sums, ProfilePhase which) {
  return sums[static_cast<size_t>(which)];
}
const PhaseTotals& forward(const PhaseSums& sums) { return phase(sums, ProfilePhase::kForward); }
const PhaseTotals& backward(const PhaseSums& sums) { return phase(sums, ProfilePhase::kBackward); }
const PhaseTotals& recompute(const PhaseSums& sums) {
  return phase(sums, ProfilePhase::kRecompute);
}

double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }
double rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

std::string flops_rate(double amount, double seconds) {
  return format_amount(rate(amount, seconds)) + "FLOPS";
}

std::string shown_path(const std::string& path) { return path.empty() ? "model" : path; }

// Modules that differ only in their numbers are of one kind: "layers.*.mlp".
std::string kind_of(const std::string& path) {
  std::string out;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string part = path.substr(begin, end - begin);
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    if (begin > 0) out += '.';
    out += number ? "*" : part;
    begin = end + 1;
  }
  return shown_path(out);
}

int deepest(const std::vector<ProfiledModule>& rows, const ProfileOptions& options) {
  int depth = 0;
  for (const ProfiledModule& row : rows) depth = std::max(depth, row.depth);
  return options.module_depth < 0
             ? depth
             : static_cast<int>(std::min<int64_t>(options.module_depth, depth));
}

// Arithmetic that backward repeats: counted where the engine recomputes, else what the
// configuration says.
double repeated_flops(const PhaseSums& total, const ProfileOptions& options) {
  const auto counted = static_cast<double>(recompute(total).work.flops);
  if (counted > 0) return counted;
  return options.recompute_fwd_factor * static_cast<double>(forward(total).work.flops);
}

void put_summary(std::string& out, const ProfiledModule& model, const ProfiledStep& step,
                 const ProfileOptions& options) {
  const auto row = [&](const char* name, const std::string& value) {
    out += format("%-70s  %-8s\n", name, value.c_str());
  };
  const auto count = [](int64_t value) { return std::to_string(value); };
  const double forward_flops = static_cast<double>(forward(model.sums).work.flops);
  const double repeated = repeated_flops(model.sums, options);
  const double backward_flops = static_cast<double>(backward(model.sums).work.flops) + repeated;
  const double iteration = step.forward_seconds + step.backward_seconds + step.update_seconds;
  row("world size:", count(step.world_size));
  row("data parallel size:", count(step.data_parallel_size));
  row("model parallel size:", "1");
  row("batch size per GPU:", count(step.micro_batch));
  row("micro batches per step:", count(step.micro_batches));
  row("params per GPU:", format_amount(static_cast<double>(model.parameters), 'B'));
  row("params of model = params per GPU * mp_size:",
      format_amount(static_cast<double>(model.parameters), 'B'));
  row("fwd MACs per GPU:",
      format_amount(static_cast<double>(forward(model.sums).work.macs)) + "MACs");
  row("fwd flops per GPU:", format_amount(forward_flops));
  row("fwd flops of model = fwd flops per GPU * mp_size:", format_amount(forward_flops));
  row("fwd latency:", format_duration(step.forward_seconds));
  row("fwd FLOPS per GPU = fwd flops per GPU / fwd latency:",
      flops_rate(forward_flops, step.forward_seconds));
  row("bwd flops per GPU:", format_amount(static_cast<double>(backward(model.sums).work.flops)));
  row("recomputed flops per GPU:", format_amount(repeated));
  row("bwd latency:", format_duration(step.backward_seconds));
  row("bwd FLOPS per GPU = (bwd + recomputed flops per GPU) / bwd latency:",
      flops_rate(backward_flops, step.backward_seconds));
  row("fwd+bwd FLOPS per GPU = all flops per GPU / (fwd+bwd latency):",
      flops_rate(forward_flops + backward_flops, step.forward_seconds + step.backward_seconds));
  row("step latency:", format_duration(step.update_seconds));
  row("iter latency:", format_duration(iteration));
  row("FLOPS per GPU = all flops per GPU / iter latency:",
      flops_rate(forward_flops + backward_flops, iteration));
  row("samples/second:", format("%.2f", rate(static_cast<double>(step.samples), iteration)));
  row("tokens/second:", format("%.2f", rate(static_cast<double>(step.tokens), iteration)));
}

// The largest kinds of each depth by one measure.
void put_top(std::string& out, const std::vector<ProfiledModule>& rows, int depth, int64_t count,
             const char* what, const std::function<double(const ProfiledModule&)>& measure,
             const std::function<std::string(double)>& show) {
  std::map<std::string, double> by_kind;
  for (const ProfiledModule& row : rows) {
    if (row.depth == depth) by_kind[kind_of(row.path)] += measure(row);
  }
  std::vector<std::pair<std::string, double>> top(by_kind.begin(), by_kind.end());
  std::stable_sort(top.begin(), top.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  out += format("    %-11s - ", what);
  for (size_t i = 0; i < top.size() && static_cast<int64_t>(i) < count; ++i) {
    out += (i > 0 ? ", " : "") + top[i].first + ": " + show(top[i].second);
  }
  out += "\n";
}

void put_aggregated(std::string& out, const std::vector<ProfiledModule>& rows,
                    const ProfileOptions& options) {
  out += format(
      "\n----------------------------- Aggregated Profile -----------------------------\n"
      "Top %lld modules in terms of params, MACs or fwd latency at different model depths;\n"
      "modules that differ only in their numbers are summed:\n",
      static_cast<long long>(options.top_modules));
  const int last = deepest(rows, options);
  for (int depth = 0; depth <= last; ++depth) {
    out += format("depth %d:\n", depth);
    put_top(
        out, rows, depth, options.top_modules, "params",
        [](const ProfiledModule& row) { return static_cast<double>(row.parameters); },
        [](double value) { return format_amount(value, 'B'); });
    put_top(
        out, rows, depth, options.top_modules, "MACs",
        [](const ProfiledModule& row) { return static_cast<double>(forward(row.sums).work.macs); },
        [](double value) { return format_amount(value) + "MACs"; });
    put_top(
        out, rows, depth, options.top_modules, "fwd latency",
        [](const ProfiledModule& row) { return forward(row.sums).seconds; }, format_duration);
  }
}

void put_tree(std::string& out, const std::vector<ProfiledModule>& rows,
              const ProfileOptions& options) {
  const int last = deepest(rows, options);
  size_t width = 6;
  for (const ProfiledModule& row : rows) {
    if (row.depth > last) continue;
    const size_t name = row.path.size() - parent_module(row.path).size();
    width = std::max(width, std::min<size_t>(2 * static_cast<size_t>(row.depth) + name, 60));
  }
  const int columns = static_cast<int>(width);
  out +=
      "\n------------------------------ Detailed Profile ------------------------------\n"
      "Each module with those below it. P, M, D: its share of params, MACs and fwd latency.\n"
      "Recomputation by activation checkpointing has its own columns.\n";
  out += format("%-*s %10s %6s %12s %6s %10s %11s %6s %15s %10s %11s %15s %10s %11s  %s\n", columns,
                "module", "params", "P", "MACs", "M", "fwd flops", "fwd latency", "D", "fwd FLOPS",
                "bwd flops", "bwd latency", "bwd FLOPS", "rec flops", "rec latency", "operators");
  const ProfiledModule& model = rows.front();
  for (const ProfiledModule& row : rows) {
    if (row.depth > last) continue;
    const std::string_view above = parent_module(row.path);
    std::string name(2 * static_cast<size_t>(row.depth), ' ');
    name += row.depth == 0 ? "model" : row.path.substr(above.empty() ? 0 : above.size() + 1);
    const PhaseTotals &fwd = forward(row.sums), &bwd = backward(row.sums),
                      &rec = recompute(row.sums);
    std::string operators;
    for (const auto& [op, sums] : row.operators) operators += (operators.empty() ? "" : ", ") + op;
    const auto amount = [](int64_t value, char billions = 'G') {
      return format_amount(static_cast<double>(value), billions);
    };
    const auto share = [](double part, double whole) {
      return format("%.2f%%", percent(part, whole));
    };
    const PhaseTotals& all = forward(model.sums);
    out += format(
        "%-*s %10s %6s %12s %6s %10s %11s %6s %15s %10s %11s %15s %10s %11s  %s\n", columns,
        name.c_str(), amount(row.parameters, 'B').c_str(),
        share(static_cast<double>(row.parameters), static_cast<double>(model.parameters)).c_str(),
        (amount(fwd.work.macs) + "MACs").c_str(),
        share(static_cast<double>(fwd.work.macs), static_cast<double>(all.work.macs)).c_str(),
        amount(fwd.work.flops).c_str(), format_duration(fwd.seconds).c_str(),
        share(fwd.seconds, all.seconds).c_str(),
        (format_amount(fwd.flops_per_second()) + "FLOPS").c_str(), amount(bwd.work.flops).c_str(),
        format_duration(bwd.seconds).c_str(),
        (format_amount(bwd.flops_per_second()) + "FLOPS").c_str(), amount(rec.work.flops).c_str(),
        format_duration(rec.seconds).c_str(), operators.c_str());
  }
}

Json totals_json(const PhaseTotals& totals) {
  return {{"calls", totals.calls},
          {"macs", totals.work.macs},
          {"flops", totals.work.flops},
          {"seconds", totals.seconds},
          {"flops_per_second", totals.flops_per_second()}};
}

Json sums_json(const PhaseSums& sums) {
  return {{"forward", totals_json(forward(sums))},
          {"backward", totals_json(backward(sums))},
          {"recompute", totals_json(recompute(sums))}};
}

}  // namespace

std::string format_amount(double value, char billions) {
  constexpr std::array<double, 4> kSizes = {1e12, 1e9, 1e6, 1e3};
  const std::array<char, 4> units = {'T', billions, 'M', 'K'};
  for (size_t i = 0; i < kSizes.size(); ++i) {
    if (value >= kSizes[i]) return format("%.2f %c", value / kSizes[i], units[i]);
  }
  return format("%.2f ", value);
}

std::string format_duration(double seconds) {
  if (seconds >= 1) return format("%.2f s", seconds);
  if (seconds >= 1e-3) return format("%.2f ms", seconds * 1e3);
  return format("%.2f us", seconds * 1e6);
}

std::string format_profile(const ModuleProfile& profile, const ProfiledStep& step,
                           const ProfileOptions& options) {
  const std::vector<ProfiledModule> rows = profile.modules();
  std::string out =
      "\n------------------------------- Flops Profiler -------------------------------\n";
  out += format("Profile Summary at step %lld:\n", static_cast<long long>(step.step));
  out +=
      "Notations:\n"
      "params: number of parameters; MACs: multiply-adds; flops: floating-point operations, two\n"
      "per multiply-add; FLOPS: flops per second; fwd, bwd: forward and backward pass; step: the\n"
      "optimizer's update. Counts and latencies are of all micro batches of the step.\n\n";
  put_summary(out, rows.front(), step, options);
  put_aggregated(out, rows, options);
  if (options.detailed) put_tree(out, rows, options);
  out += "------------------------------------------------------------------------------\n";
  return out;
}

Json profile_json(const ModuleProfile& profile, const ProfiledStep& step,
                  const ProfileOptions& options) {
  const std::vector<ProfiledModule> rows = profile.modules();
  const ProfiledModule& model = rows.front();
  const double iteration = step.forward_seconds + step.backward_seconds + step.update_seconds;
  const double flops = static_cast<double>(forward(model.sums).work.flops) +
                       static_cast<double>(backward(model.sums).work.flops) +
                       repeated_flops(model.sums, options);
  Json modules = Json::array();
  for (const ProfiledModule& row : rows) {
    Json module = {{"path", row.path},
                   {"depth", row.depth},
                   {"parent", row.parent},
                   {"parameters", row.parameters}};
    module.update(sums_json(row.sums));
    module["operators"] = Json::array();
    for (const auto& [op, sums] : row.operators) {
      Json entry = {{"operator", op}};
      entry.update(sums_json(sums));
      module["operators"].push_back(std::move(entry));
    }
    modules.push_back(std::move(module));
  }
  Json totals = {{"parameters", model.parameters}};
  totals.update(sums_json(model.sums));
  totals["recomputed_flops"] = repeated_flops(model.sums, options);
  totals["flops_per_second"] = rate(flops, iteration);
  return {{"step", step.step},
          {"world_size", step.world_size},
          {"micro_batch", step.micro_batch},
          {"micro_batches", step.micro_batches},
          {"samples", step.samples},
          {"tokens", step.tokens},
          {"seconds",
           {{"forward", step.forward_seconds},
            {"backward", step.backward_seconds},
            {"update", step.update_seconds},
            {"total", iteration}}},
          {"totals", std::move(totals)},
          {"modules", std::move(modules)}};
}

}  // namespace ds
