// `ds view`: one HTML page of a training run, or its summary.
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command.h"
#include "files.h"
#include "format.h"
#include "nearest.h"
#include "run_description.h"
#include "view_page.h"
#include "view_record.h"

namespace tool {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kLongestDescription = uintmax_t{16} << 20;
constexpr size_t kMostCheckpoints = 100;

struct ViewOptions {
  std::string run;
  std::string metrics;
  std::string output;
  bool json = false;
};

std::vector<std::string> names_in(const fs::path& folder, const std::string& extension) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const fs::path name = at->path().filename();
    if (extension.empty() || name.extension() == extension) names.push_back(name.string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

[[noreturn]] void fail_no_such_run(const std::string& run) {
  const fs::path path(run);
  const fs::path parent = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string meant = nearest(path.filename().string(), names_in(parent, ""));
  throw Failure("there is no file or folder " + run +
                (meant.empty() ? ": RUN is the file of `ds train --metrics`, or its folder"
                               : ": did you mean " + (path.parent_path() / meant).string() + "?"));
}

// The metrics of a folder: those of the usual name, or the only ones.
std::string metrics_in(const std::string& folder) {
  const fs::path usual = fs::path(folder) / "metrics.jsonl";
  if (file_exists(usual.string())) return usual.string();
  const std::vector<std::string> names = names_in(folder, ".jsonl");
  if (names.size() == 1) return (fs::path(folder) / names[0]).string();
  if (names.empty()) {
    throw Failure("no metrics in " + folder +
                  ": it has neither metrics.jsonl nor another .jsonl file. `ds train --metrics " +
                  usual.string() + "` writes one; --metrics FILE names one elsewhere");
  }
  std::string all;
  for (size_t i = 0; i < names.size() && i < 5; ++i) all += (i > 0 ? ", " : "") + names[i];
  if (names.size() > 5) all += ", ...";
  throw Failure(folder + " holds several .jsonl files (" + all +
                "): say which with --metrics FILE, or give it as RUN");
}

// What `ds train` wrote beside the metrics; null when it is not there. What is wrong with it goes
// to `notes`.
Json description_of(const std::string& metrics, Json& notes) {
  const std::string path = description_path(metrics);
  if (!fs::is_regular_file(path)) return {};
  std::error_code error;
  if (const uintmax_t size = fs::file_size(path, error); error || size > kLongestDescription) {
    notes.push_back(path + " is left out: it is larger than 16 MiB");
    return {};
  }
  Json json = Json::parse(read_text(path), nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  notes.push_back(path + " is left out: it is damaged (not a JSON object)");
  return {};
}

std::string time_of(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  if (error) return {};
  return utc_text(std::chrono::system_clock::to_time_t(std::chrono::file_clock::to_sys(written)));
}

// One checkpoint as a row; `described` is what the library says of it.
Json checkpoint_row(const Json& described) {
  Json row = {{"tag", described.at("tag")},
              {"step", described.at("counters").at("global_steps")},
              {"samples", described.at("counters").at("global_samples")},
              {"ranks", described.at("topology").at("world")},
              {"zero_stage", described.at("topology").at("zero_stage")}};
  double bytes = 0;
  for (const Json& blob : described.at("blobs")) bytes += blob.at("size").get<double>();
  row["bytes"] = bytes;
  row["run"] = described.at("run");
  row["written"] = time_of(described.at("folder").get<std::string>());
  return row;
}

Json list_checkpoints(const std::string& folder, Json& notes) {
  Json rows = Json::array();
  if (folder.empty() || !folder_exists(folder)) return rows;
  std::vector<std::string> tags;
  try {
    const Json newest = parse_json(libds::inspect_checkpoint(folder), "the folder's description");
    tags = newest.at("tags").get<std::vector<std::string>>();
  } catch (const libds::Error& error) {
    if (error.status() != DS_ERR_NOT_FOUND) {
      notes.push_back("checkpoints of " + folder + ": " + plain_message(error));
    }
    return rows;
  }
  const size_t left_out = tags.size() > kMostCheckpoints ? tags.size() - kMostCheckpoints : 0;
  if (left_out > 0) notes.push_back(std::to_string(left_out) + " older checkpoints are left out");
  for (size_t i = left_out; i < tags.size(); ++i) {
    try {
      rows.push_back(checkpoint_row(
          parse_json(libds::inspect_checkpoint(folder, tags[i]), "the checkpoint's description")));
    } catch (const std::exception& error) {
      rows.push_back({{"tag", tags[i]}, {"problem", plain_message(error)}});
    }
  }
  return rows;
}

struct View {
  std::string name;
  std::string metrics;
  std::string page;  // where the page goes by default
  Json document;     // without the series
  Json series;
};

View read_run(const ViewOptions& o) {
  const bool folder = folder_exists(o.run);
  if (!folder && !file_exists(o.run)) fail_no_such_run(o.run);
  View view;
  view.metrics = !o.metrics.empty() ? o.metrics : folder ? metrics_in(o.run) : o.run;
  if (!fs::is_regular_file(view.metrics)) {
    throw Failure("cannot read the metrics " + view.metrics + ": " +
                  (fs::exists(view.metrics) ? "no regular file" : "there is no such file"));
  }
  const fs::path whole = fs::absolute(o.run).lexically_normal();
  const fs::path named = whole.has_filename() ? whole : whole.parent_path();
  view.name = (folder ? named.filename() : named.stem()).string();
  view.page = folder ? (fs::path(o.run) / "view.html").string()
                     : (fs::path(o.run).parent_path() / (view.name + ".html")).string();

  const ViewRecord record(view.metrics);
  Json notes = record.notes();
  const Json description = description_of(view.metrics, notes);
  std::string saves = folder ? o.run : std::string();
  if (!folder && description.is_object()) {
    const auto save = description.find("save");
    if (save != description.end() && save->is_string()) saves = save->get<std::string>();
  }
  Json checkpoints = list_checkpoints(saves, notes);
  view.document = {{"name", view.name},
                   {"metrics", view.metrics},
                   {"viewed", utc_text(std::time(nullptr))},
                   {"ds", ds_version()},
                   {"summary", record.summary()},
                   {"skips", record.skips()},
                   {"evaluations", record.evaluations()},
                   {"checkpoints", std::move(checkpoints)},
                   {"notes", std::move(notes)},
                   {"run", description}};
  view.series = Json::object();
  for (const auto& [name, series] : record.series()) view.series[name] = series.document();
  return view;
}

int run_view(const ViewOptions& o) {
  View view = read_run(o);
  if (o.json) {
    std::cout << view.document.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    if (o.output.empty()) return kDone;
  }
  view.document["series"] = std::move(view.series);
  const std::string path = o.output.empty() ? view.page : o.output;
  const std::string page = view_page(view.name, view.document);
  if (path == "-") {
    std::cout << page;
    return kDone;
  }
  write_text(path, page);
  std::cerr << "wrote " << path << " (" << format_bytes(static_cast<double>(page.size())) << ")\n";
  return kDone;
}

}  // namespace

void add_view(CLI::App& app, Action& action) {
  CLI::App* sub = app.add_subcommand("view", "Write a page with the curves of a training run");
  auto options = std::make_shared<ViewOptions>();
  ViewOptions& o = *options;
  sub->add_option("run", o.run,
                  "folder with metrics.jsonl and checkpoints, or the file of `ds train --metrics` "
                  "or of a jsonl_monitor")
      ->type_name("RUN")
      ->required();
  sub->add_option("--metrics", o.metrics, "the metrics, where they are not in the folder")
      ->type_name("FILE");
  sub->add_option(
         "--output", o.output,
         "the HTML page, - for standard output; default: RUN/view.html, or RUN.html beside "
         "a file")
      ->type_name("FILE");
  sub->add_flag("--json", o.json,
                "print the summary as JSON; a page is written only with --output");
  sub->callback([&action, options] { action = [options] { return run_view(*options); }; });
}

}  // namespace tool
