package io.ds;

import java.util.List;

/**
 * What a parameter is.
 *
 * @param elements numbers in it
 * @param shape sizes
 * @param dtype type in which the program holds it; float32 for built-in models
 * @param trainable it is not frozen
 * @param decays weight decay applies
 */
public record ParameterInfo(
    long elements,
    List<Long> shape,
    DType dtype,
    boolean trainable,
    boolean decays) {
  static ParameterInfo of(ds_parameter_info from) {
    return new ParameterInfo(
        from.getElements(),
        TensorInfo.sizes(from.getShape(), from.getNdim()),
        DType.of(from.getDtype()),
        from.getTrainable(),
        from.getDecays());
  }
}
