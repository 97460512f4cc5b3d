package io.ds;

/** Which values of a parameter are meant. */
public enum ValueKind {
  /** The float32 master. */
  PARAMETER(ds_value_code.DS_VALUE_PARAMETER),
  /** The gradient of the open step, as summed so far. */
  GRADIENT(ds_value_code.DS_VALUE_GRADIENT),
  /** A state tensor of the optimizer, by its name. */
  STATE(ds_value_code.DS_VALUE_STATE);

  final int code;

  ValueKind(int code) {
    this.code = code;
  }

  static ValueKind of(int code) {
    for (ValueKind one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a ValueKind that this version does not know: " + code);
  }
}
