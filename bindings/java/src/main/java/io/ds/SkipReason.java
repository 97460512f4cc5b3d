package io.ds;

/** Why a step was not applied. */
public enum SkipReason {
  /** It was applied. */
  NONE(ds_skip_code.DS_SKIP_NONE),
  /** Not a boundary: more micro batches belong to this step. */
  ACCUMULATING(ds_skip_code.DS_SKIP_ACCUMULATING),
  /** A gradient was NaN or infinite; weights and moments are untouched. */
  NON_FINITE(ds_skip_code.DS_SKIP_NON_FINITE),
  /** The gradient norm was above gradient_skip_norm; weights and moments are untouched. */
  LARGE_NORM(ds_skip_code.DS_SKIP_LARGE_NORM);

  final int code;

  SkipReason(int code) {
    this.code = code;
  }

  static SkipReason of(int code) {
    for (SkipReason one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a SkipReason that this version does not know: " + code);
  }
}
