package io.ds;

import java.lang.ref.Cleaner;
import java.util.function.LongConsumer;

/**
 * An object of the library that a Java object stands for.
 *
 * <p>Close it, best with try-with-resources: what it holds is memory that the garbage collector does not see. One that was
 * forgotten is closed some time after the last reference to it is gone. Objects may be closed in any order and on any
 * thread; what still needs another one keeps it alive inside.
 */
public abstract class NativeObject implements AutoCloseable {
  private static final Cleaner CLEANER = Cleaner.create();

  private final Cleaner.Cleanable end;
  private volatile long handle; // the native layer reads it by this name

  /**
   * Takes over a handle.
   *
   * @param handle what the library gave
   * @param destroy ends it; must not refer to this object
   */
  NativeObject(long handle, LongConsumer destroy) {
    this.handle = handle;
    this.end = onceUnreachable(this, () -> destroy.accept(handle));
  }

  /**
   * Runs an action when an object is unreachable, or earlier by its {@code clean()}.
   *
   * @param object what is watched
   * @param action must not refer to the object
   * @return runs the action early
   */
  static Cleaner.Cleanable onceUnreachable(Object object, Runnable action) {
    return CLEANER.register(object, action);
  }

  /**
   * Passes an open object on, or null.
   *
   * @param object an object or null
   * @return the same
   * @throws IllegalStateException when it is closed
   */
  static <T extends NativeObject> T live(T object) {
    if (object != null && ((NativeObject) object).handle == 0) {
      throw new IllegalStateException("this " + object.getClass().getSimpleName() + " is closed");
    }
    return object;
  }

  /**
   * Passes open objects on; elements may be null.
   *
   * @param objects an array or null
   * @return the same
   * @throws IllegalStateException when one is closed
   */
  static <T extends NativeObject> T[] live(T[] objects) {
    if (objects != null) {
      for (T object : objects) {
        live(object);
      }
    }
    return objects;
  }

  /**
   * Whether {@link #close()} has been called.
   *
   * @return true afterwards
   */
  public final boolean isClosed() {
    return handle == 0;
  }

  /** Ends the object; later calls of its methods throw {@link IllegalStateException}. A second call does nothing. */
  @Override
  public void close() {
    handle = 0;
    end.clean();
  }
}
