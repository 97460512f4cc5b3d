package io.ds;

/** How numbers of several processes become one. */
public enum ReduceOp {
  /** Their sum. */
  SUM(ds_reduce_code.DS_REDUCE_SUM),
  /** Their mean; floating types only. */
  AVERAGE(ds_reduce_code.DS_REDUCE_AVERAGE),
  /** The smallest. */
  MIN(ds_reduce_code.DS_REDUCE_MIN),
  /** The largest. */
  MAX(ds_reduce_code.DS_REDUCE_MAX);

  final int code;

  ReduceOp(int code) {
    this.code = code;
  }

  static ReduceOp of(int code) {
    for (ReduceOp one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a ReduceOp that this version does not know: " + code);
  }
}
