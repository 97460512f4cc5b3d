package io.ds;

/** How much of a parameter's values is meant. */
public enum Extent {
  /** All elements, in the parameter's shape; every process makes the call. */
  WHOLE(ds_extent_code.DS_EXTENT_WHOLE),
  /** This process's part ({@link Engine#localRange}), of one dimension. */
  LOCAL(ds_extent_code.DS_EXTENT_LOCAL);

  final int code;

  Extent(int code) {
    this.code = code;
  }

  static Extent of(int code) {
    for (Extent one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a Extent that this version does not know: " + code);
  }
}
