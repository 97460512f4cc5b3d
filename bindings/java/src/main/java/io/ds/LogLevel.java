package io.ds;

/** How serious a message of the log is. */
public enum LogLevel {
  /** For developers. */
  DEBUG(ds_log_level.DS_LOG_DEBUG),
  /** What goes on. */
  INFO(ds_log_level.DS_LOG_INFO),
  /** What may surprise; the default of {@link Ds#setLogLevel}. */
  WARNING(ds_log_level.DS_LOG_WARNING),
  /** What failed. */
  ERROR(ds_log_level.DS_LOG_ERROR),
  /** No message at all. */
  OFF(ds_log_level.DS_LOG_OFF);

  final int code;

  LogLevel(int code) {
    this.code = code;
  }

  static LogLevel of(int code) {
    for (LogLevel one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a LogLevel that this version does not know: " + code);
  }
}
