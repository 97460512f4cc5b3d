#include "comm/logger.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/log.h"

namespace ds {

Bandwidth collective_bandwidth(Collective kind, int64_t bytes, double seconds, int ranks) {
  if (!(seconds > 0)) return {};
  const double n = ranks, rate = static_cast<double>(bytes) / seconds;
  switch (kind) {
    case Collective::kAllReduce:
      return {2 * rate, rate * 2 * (n - 1) / n};
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return {rate * n, rate * (n - 1)};
    case Collective::kReduceScatter:  // its input is the whole
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      return {rate, rate * (n - 1) / n};
    default:
      return {rate, rate};
  }
}

struct CommsLogger::Row {
  int64_t bytes;
  int64_t count;
  double total_ms, average_ms, algorithm_gbps, bus_gbps;
  int64_t within_node, across_nodes;
};

bool CommsLogger::wanted(Collective kind) const {
  return options_.profile_all ||
         std::ranges::find(options_.operations, collective_name(kind)) != options_.operations.end();
}

void CommsLogger::record(Collective kind, int64_t bytes, double seconds, int ranks,
                         int64_t within_node, int64_t across_nodes) {
  if (!wanted(kind)) return;
  {
    const std::lock_guard lock(mutex_);
    Samples& samples = samples_[{kind, bytes}];
    samples.seconds.push_back(static_cast<float>(seconds));
    samples.ranks = ranks;
    samples.within_node += within_node;
    samples.across_nodes += across_nodes;
  }
  if (options_.verbose && log_enabled(LogLevel::kInfo)) {
    const Bandwidth bandwidth = collective_bandwidth(kind, bytes, seconds, ranks);
    char text[200];
    std::snprintf(text, sizeof(text),
                  "comm op: %s | time (ms): %.2f | msg size: %lld | algbw (Gbps): %.2f | busbw "
                  "(Gbps): %.2f",
                  std::string(collective_name(kind)).c_str(), seconds * 1e3,
                  static_cast<long long>(bytes), bandwidth.algorithm * 8e-9, bandwidth.bus * 8e-9);
    log_write(LogLevel::kInfo, "comm", text);
  }
}

namespace {

// Without round(n / 10) samples at either end, halves to even; the samples keep their order.
double trimmed_mean(std::vector<float> samples) {
  std::ranges::sort(samples);
  const auto cut = static_cast<size_t>(std::nearbyint(0.1 * static_cast<double>(samples.size())));
  double sum = 0;
  for (size_t i = cut; i < samples.size() - cut; ++i) sum += samples[i];
  return sum / static_cast<double>(samples.size() - 2 * cut);
}

}  // namespace

std::map<Collective, std::vector<CommsLogger::Row>> CommsLogger::rows() const {
  std::map<Collective, std::vector<Row>> rows;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, samples] : samples_) {
    double total = 0;
    std::vector<float> algorithm, bus;
    for (const float seconds : samples.seconds) {
      total += seconds;
      const Bandwidth b = collective_bandwidth(key.first, key.second, seconds, samples.ranks);
      algorithm.push_back(static_cast<float>(b.algorithm * 8e-9));
      bus.push_back(static_cast<float>(b.bus * 8e-9));
    }
    rows[key.first].push_back({key.second, static_cast<int64_t>(samples.seconds.size()),
                               total * 1e3, trimmed_mean(samples.seconds) * 1e3,
                               trimmed_mean(std::move(algorithm)), trimmed_mean(std::move(bus)),
                               samples.within_node, samples.across_nodes});
  }
  return rows;
}

std::string CommsLogger::table() const {
  char line[256];
  std::snprintf(line, sizeof(line), "%-20s%-20s%-20s%-20s%-20s%-20s%-20s\n", "Comm. Op",
                "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)",
                "busbw_avg (Gbps)");
  std::string text = line;
  const auto all = rows();
  for (const auto& [kind, sizes] : all) {
    text += collective_name(kind);
    text += '\n';
    for (const Row& row : sizes) {
      std::snprintf(line, sizeof(line), "%-20s%-20s%-20lld%-20.2f%-20.2f%-20.2f%-20.2f\n", "",
                    format_bytes(row.bytes).c_str(), static_cast<long long>(row.count),
                    row.total_ms, row.average_ms, row.algorithm_gbps, row.bus_gbps);
      text += line;
    }
  }
  std::snprintf(line, sizeof(line), "%-20s%-20s%-20s\n", "Bytes sent by", "Within node",
                "Across nodes");
  text += line;
  for (const auto& [kind, sizes] : all) {
    int64_t within = 0, across = 0;
    for (const Row& row : sizes) {
      within += row.within_node;
      across += row.across_nodes;
    }
    if (within + across == 0) continue;
    std::snprintf(line, sizeof(line), "%-20s%-20lld%-20lld\n",
                  std::string(collective_name(kind)).c_str(), static_cast<long long>(within),
                  static_cast<long long>(across));
    text += line;
  }
  return text;
}

Json CommsLogger::summary() const {
  Json document = Json::object();
  for (const auto& [kind, sizes] : rows()) {
    Json& list = document[std::string(collective_name(kind))] = Json::array();
    for (const Row& row : sizes) {
      list.push_back({{"bytes", row.bytes},
                      {"count", row.count},
                      {"total_ms", row.total_ms},
                      {"average_ms", row.average_ms},
                      {"algbw_gbps", row.algorithm_gbps},
                      {"busbw_gbps", row.bus_gbps},
                      {"within_node_bytes", row.within_node},
                      {"across_nodes_bytes", row.across_nodes}});
    }
  }
  return document;
}

}  // namespace ds
