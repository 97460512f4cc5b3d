package io.ds;

/** What the native layer calls: listeners of the program, and the maker of exceptions. */
final class Callbacks {
  private Callbacks() {}

  static Throwable exception(int status, byte[] message) {
    return DsException.of(status, Marshal.text(message));
  }

  /** On any thread, in the middle of anything: nothing may come out. */
  static void log(LogSink sink, int level, byte[] component, byte[] text) {
    try {
      sink.log(LogLevel.of(level), Marshal.text(component), Marshal.text(text));
    } catch (Throwable thrown) {
      Thread current = Thread.currentThread();
      try {
        current.getUncaughtExceptionHandler().uncaughtException(current, thrown);
      } catch (Throwable again) {
        // as Java does for a handler that throws: nothing is left to tell
      }
    }
  }

  static boolean progress(ProgressListener listener, byte[] call, long done, long total) {
    return listener.progress(Marshal.text(call), done, total);
  }

  static boolean token(TokenListener listener, int token) {
    return listener.token(token);
  }

  static boolean textToken(TextTokenListener listener, int text, int token) {
    return listener.token(text, token);
  }

  static void put(KeyValueStore store, byte[] key, byte[] value) {
    store.put(Marshal.text(key), value);
  }

  static byte[] get(KeyValueStore store, byte[] key) {
    return store.get(Marshal.text(key));
  }
}
