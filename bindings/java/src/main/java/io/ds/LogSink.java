package io.ds;

/** Hears the log of the library, see {@link Ds#setLog}. */
@FunctionalInterface
public interface LogSink {
  /**
   * One message, on whatever thread logs, possibly several at once. It must not call the library. An exception goes to the
   * thread's {@linkplain Thread#getUncaughtExceptionHandler() handler} and changes nothing else.
   *
   * @param level how serious it is
   * @param component the part of the library that says it
   * @param text what it says
   */
  void log(LogLevel level, String component, String text);
}
