package io.ds;

/** What a {@link Collective} does. */
public enum CollectiveKind {
  /** Combines tensors of all processes, in place. */
  ALL_REDUCE(ds_collective_code.DS_COLLECTIVE_ALL_REDUCE),
  /** The same; the result is that of the root alone. */
  REDUCE(ds_collective_code.DS_COLLECTIVE_REDUCE),
  /** Combines; each process gets its piece. */
  REDUCE_SCATTER(ds_collective_code.DS_COLLECTIVE_REDUCE_SCATTER),
  /** Every process gets the pieces of all. */
  ALL_GATHER(ds_collective_code.DS_COLLECTIVE_ALL_GATHER),
  /** The tensor of the root goes to all. */
  BROADCAST(ds_collective_code.DS_COLLECTIVE_BROADCAST),
  /** Every process sends a piece to every process. */
  ALL_TO_ALL(ds_collective_code.DS_COLLECTIVE_ALL_TO_ALL),
  /** The root gets the pieces of all. */
  GATHER(ds_collective_code.DS_COLLECTIVE_GATHER),
  /** Every process gets a piece of the root's. */
  SCATTER(ds_collective_code.DS_COLLECTIVE_SCATTER),
  /** To one process, by tag. */
  SEND(ds_collective_code.DS_COLLECTIVE_SEND),
  /** From one process, by tag. */
  RECV(ds_collective_code.DS_COLLECTIVE_RECV),
  /** Done when every process has started it. */
  BARRIER(ds_collective_code.DS_COLLECTIVE_BARRIER);

  final int code;

  CollectiveKind(int code) {
    this.code = code;
  }

  static CollectiveKind of(int code) {
    for (CollectiveKind one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a CollectiveKind that this version does not know: " + code);
  }
}
