package io.ds;

/** Types of a tensor's elements. */
public enum DType {
  /** 32-bit floating point. */
  FLOAT32(ds_dtype_code.DS_FLOAT32, 4),
  /** 64-bit floating point. */
  FLOAT64(ds_dtype_code.DS_FLOAT64, 8),
  /** IEEE 16-bit floating point. */
  FLOAT16(ds_dtype_code.DS_FLOAT16, 2),
  /** The upper half of a float32. */
  BFLOAT16(ds_dtype_code.DS_BFLOAT16, 2),
  /** Signed byte. */
  INT8(ds_dtype_code.DS_INT8, 1),
  /** Java's {@code short}. */
  INT16(ds_dtype_code.DS_INT16, 2),
  /** Java's {@code int}. */
  INT32(ds_dtype_code.DS_INT32, 4),
  /** Java's {@code long}. */
  INT64(ds_dtype_code.DS_INT64, 8),
  /** Unsigned byte. */
  UINT8(ds_dtype_code.DS_UINT8, 1),
  /** Java's {@code char}. */
  UINT16(ds_dtype_code.DS_UINT16, 2),
  /** Unsigned {@code int}. */
  UINT32(ds_dtype_code.DS_UINT32, 4),
  /** Unsigned {@code long}. */
  UINT64(ds_dtype_code.DS_UINT64, 8),
  /** 0 or 1 in a byte. */
  BOOL(ds_dtype_code.DS_BOOL, 1);

  final int code;
  private final int bytes;

  DType(int code, int bytes) {
    this.code = code;
    this.bytes = bytes;
  }

  static DType of(int code) {
    for (DType one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a DType that this version does not know: " + code);
  }

  /**
   * Size of an element.
   *
   * @return 1, 2, 4 or 8
   */
  public int bytes() {
    return bytes;
  }
}
