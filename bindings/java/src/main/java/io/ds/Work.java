package io.ds;

/** A collective under way, see {@link Comm#start}. Any thread may ask. */
public final class Work extends NativeObject {
  Work(long handle) {
    super(handle, Native::end_ds_work);
  }

  /**
   * Whether the operation is over, well or not.
   *
   * @return true when {@link #await} returns at once
   */
  public boolean isDone() {
    boolean[] out = new boolean[1];
    Native.ds_work_test(this, out);
    return out[0];
  }

  /**
   * Waits until the result is in place.
   *
   * @return processes that took part and had not joined
   * @throws DsException.Comm when a process failed, was late or called something else
   */
  public int await() {
    int[] out = new int[1];
    Native.ds_work_wait(this, out);
    return out[0];
  }
}
