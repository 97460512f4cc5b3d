package io.ds;

/** The library as a whole: version, log, reports, and questions about configurations. */
public final class Ds {
  private Ds() {}

  /**
   * Version of the loaded library.
   *
   * @return such as "0.5.0"
   */
  public static String version() {
    return Native.ds_version();
  }

  /**
   * Version of the loaded library as a number.
   *
   * @return major * 1000000 + minor * 1000 + patch
   */
  public static int abiVersion() {
    return Native.ds_abi_version();
  }

  /**
   * Sends the log of this process to a sink.
   *
   * @param sink hears every message; null restores the default, standard error
   */
  public static void setLog(LogSink sink) {
    Native.ds_log_set(sink);
  }

  /**
   * Sets the lowest level that is logged in this process.
   *
   * @param level {@link LogLevel#WARNING} at first
   */
  public static void setLogLevel(LogLevel level) {
    Native.ds_log_set_level(level.code);
  }

  /**
   * Describes the build and the machine: version, compiler, options, libraries, CPU features and the kernels chosen, devices,
   * and what is not usable and why.
   *
   * @return JSON
   */
  public static String report() {
    return Marshal.text(Native::ds_report);
  }

  /**
   * What this process holds: "by_tag", "devices", "process" and "system".
   *
   * @return JSON
   */
  public static String memoryReport() {
    return Marshal.text(Native::ds_memory_report);
  }

  /**
   * Checks a configuration without an engine and lists everything that is wrong with it; a document that is refused is no
   * error of this call.
   *
   * @param configJson a DeepSpeed configuration
   * @param optionsJson how it is read and where it would be used ("world", "device", "model"); null for the defaults
   * @return JSON with "accepted", "problems", "warnings", "document", "config", "origins"
   * @throws DsException.Config when the options are wrong
   */
  public static String checkConfig(String configJson, String optionsJson) {
    return Marshal.text(out -> Native.ds_config_check(configJson, optionsJson, out));
  }

  /**
   * Every key that a configuration may have, as a JSON Schema (draft 2020-12).
   *
   * @return JSON
   */
  public static String configSchema() {
    return Marshal.text(Native::ds_config_schema);
  }

  /**
   * What training would take on each process of a world that need not be there, from shapes alone.
   *
   * @param modelJson a Hugging Face config.json, or {"parameters": N, "layers": L}
   * @param configJson a DeepSpeed configuration
   * @param optionsJson {"world": 1, "ranks_per_node": 0, "sequence_length": 0}, and "compare" or "fit" as ds_plan of
   *     ds.h has them; null for these defaults
   * @return JSON with "model", "stage", "memory_per_rank" (bytes by use) and "moved_per_step"
   */
  public static String plan(String modelJson, String configJson, String optionsJson) {
    return Marshal.text(out -> Native.ds_plan(modelJson, configJson, optionsJson == null ? "{}" : optionsJson, out));
  }
}
