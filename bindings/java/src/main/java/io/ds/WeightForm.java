package io.ds;

/** How a {@link Generator} holds weights. */
public enum WeightForm {
  /** The model's own, as they are at each call. */
  MODEL(ds_weight_form_code.DS_WEIGHTS_MODEL),
  /** Its own copy. */
  FLOAT32(ds_weight_form_code.DS_WEIGHTS_FLOAT32),
  /** Its own copy. */
  BFLOAT16(ds_weight_form_code.DS_WEIGHTS_BFLOAT16),
  /** Matrices of linear layers in 8 bits, the rest bfloat16. */
  INT8(ds_weight_form_code.DS_WEIGHTS_INT8),
  /** The same in 4 bits. */
  INT4(ds_weight_form_code.DS_WEIGHTS_INT4);

  final int code;

  WeightForm(int code) {
    this.code = code;
  }

  static WeightForm of(int code) {
    for (WeightForm one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a WeightForm that this version does not know: " + code);
  }
}
