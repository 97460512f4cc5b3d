package io.ds;

/**
 * Parameters of an engine made whole for a while, see {@link Engine#openScope}. Made for try-with-resources: leaving the block
 * closes the scope.
 */
public final class Scope extends NativeObject {
  private final int size;

  Scope(long handle, int size) {
    super(handle, Native::end_ds_scope);
    this.size = size;
  }

  /**
   * Number of parameters in the scope.
   *
   * @return as many as opened it
   */
  public int size() {
    return size;
  }

  /**
   * A parameter of the scope.
   *
   * @param position in the list that opened it
   * @return its whole values; to be closed
   */
  public Tensor tensor(int position) {
    return Marshal.tensor(out -> Native.ds_scope_tensor(this, position, out));
  }

  /**
   * Ends a scope of mode {@link ScopeMode#MODIFY}: what one process has in its tensors becomes their value in every process.
   * Every process calls it, and it waits for them. {@link #close} then has nothing to do.
   *
   * @param modifierRank the process whose values count
   */
  public void commit(int modifierRank) {
    Native.ds_scope_commit(this, modifierRank);
  }

  /**
   * Ends the scope; changes of mode {@link ScopeMode#MODIFY} that were not committed are dropped. In that mode it waits for the
   * other processes.
   *
   * @throws DsException.State when changes were dropped and the configuration's enable_sanity_checks is set
   */
  @Override
  public void close() {
    if (isClosed()) {
      return;
    }
    try {
      Native.ds_scope_close(this);
    } finally {
      super.close();
    }
  }
}
