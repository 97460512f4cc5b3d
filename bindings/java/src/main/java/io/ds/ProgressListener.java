package io.ds;

/** Hears how far a long call of an engine has come, see {@link Engine#setProgress}. */
@FunctionalInterface
public interface ProgressListener {
  /**
   * Before each part of the call, on the thread that makes it. It must not use the engine, its model or its optimizer. An
   * exception ends the call and comes out of it.
   *
   * @param call "train_batch" (parts are micro batches), "evaluate" (micro batches), "save" (parameters) or "load" (bytes)
   * @param done parts that are done
   * @param total parts of the call
   * @return true to go on; false ends the call with {@link DsException.Stopped}
   */
  boolean progress(String call, long done, long total);
}
