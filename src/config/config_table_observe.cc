// timers, monitors, comms_logger, flops_profiler.
#include "config/config_table.h"

namespace ds {
namespace {

using namespace keys;

std::vector<Key> file_monitor_rows(const char* what) {
  return {
      flag("enabled", false, what).to(&MonitorConfig::enabled),
      text("output_path", "", "Folder; empty is the current one.").to(&MonitorConfig::output_path),
      text("job_name", "DeepSpeedJobName", "Folder or file name below output_path.")
          .to(&MonitorConfig::job_name),
  };
}

}  // namespace

KeyTable timers_table() {
  return table(
      "Timers.",
      {section("throughput",
               table("Samples and tokens per second; the first 2 steps do not count.",
                     {
                         flag("enabled", true,
                              "Measure; the log, at steps_per_print, and the monitors get it.")
                             .to(&Config::throughput),
                         flag("synchronized", true,
                              "Wait for the device before reading the clock. A CPU never runs "
                              "ahead, so both values mean the same there."),
                     })
                   .accepts_auto())});
}

KeyTable tensorboard_table() {
  return table("Scalars for TensorBoard.", file_monitor_rows("Write TensorBoard event files."))
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable csv_monitor_table() {
  return table("Scalars as CSV files.", file_monitor_rows("Write one CSV file per scalar."))
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable jsonl_monitor_table() {
  return table(
             "Scalars as JSON lines in output_path/job_name/metrics.jsonl: one object per step "
             "with step (of the optimizer), samples and the scalars. (Extension.)",
             file_monitor_rows("Write one JSON object per step."))
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable wandb_table() {
  return table("Scalars for Weights & Biases.",
               {
                   flag("enabled", false,
                        "Write an offline run, which `wandb sync` sends to the service.")
                       .to(&WandbConfig::enabled),
                   text("output_path", "",
                        "Folder that gets wandb/offline-run-TIME-ID; empty is the current one. "
                        "(Extension.)")
                       .to(&WandbConfig::output_path),
                   text("group", std::nullopt, "Group of runs.").to(&WandbConfig::group),
                   text("team", std::nullopt, "Team.").to(&WandbConfig::team),
                   text("project", "deepspeed", "Project.").to(&WandbConfig::project),
               })
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable comet_table() {
  return table("Scalars for Comet.",
               {
                   flag("enabled", false, "Turns it on.").needs("the Comet service"),
                   integer("samples_log_interval", 100, "Samples between events.").at_least(1),
                   text("project", std::nullopt, "Project."),
                   text("workspace", std::nullopt, "Workspace."),
                   text("api_key", std::nullopt, "Key of the service."),
                   text("experiment_name", std::nullopt, "Name of the run."),
                   text("experiment_key", std::nullopt, "Key of the run."),
                   flag("online", std::nullopt, "Send at once."),
                   choice("mode", {"get", "create", "get_or_create"}, std::nullopt,
                          "New or existing run."),
               })
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable comms_logger_table() {
  return table("Times of collectives: a table in the log when the engine ends.",
               {
                   flag("enabled", false, "Turns it on.").to(&CommsLoggerConfig::enabled),
                   flag("prof_all", true, "Log every collective.").to(&CommsLoggerConfig::prof_all),
                   list("prof_ops", any_text(), "[]", "Collectives to log.")
                       .to(&CommsLoggerConfig::prof_ops),
                   flag("verbose", false, "Log each call.").to(&CommsLoggerConfig::verbose),
                   flag("debug", false, "Log the caller too.")
                       .needs("callers in the log of collectives"),
               })
      .gated_by("enabled")
      .accepts_auto();
}

KeyTable flops_profiler_table() {
  return table(
             "Arithmetic per layer.",
             {
                 flag("enabled", false, "Turns it on; also wall_clock_breakdown.")
                     .to(&FlopsProfilerConfig::enabled),
                 number("recompute_fwd_factor", 0.0,
                        "Share of forward that backward repeats, where activation_checkpointing "
                        "does not do it: what it repeats is counted.")
                     .at_least(0)
                     .to(&FlopsProfilerConfig::recompute_fwd_factor),
                 integer("profile_step", 1, "Steps completed before the one that is profiled.")
                     .at_least(0)
                     .to(&FlopsProfilerConfig::profile_step),
                 integer("module_depth", -1, "Depth of the report; -1 is the innermost.")
                     .at_least(-1)
                     .to(&FlopsProfilerConfig::module_depth),
                 integer("top_modules", 1, "Modules listed per depth.")
                     .at_least(1)
                     .to(&FlopsProfilerConfig::top_modules),
                 flag("detailed", true, "The module tree too.").to(&FlopsProfilerConfig::detailed),
                 text("output_file", std::nullopt, "File instead of the log.")
                     .to(&FlopsProfilerConfig::output_file),
             })
      .gated_by("enabled")
      .ignores_other_keys();
}

}  // namespace ds
