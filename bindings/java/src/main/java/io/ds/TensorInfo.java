package io.ds;

import java.util.Arrays;
import java.util.List;

/**
 * Type, shape and place of a tensor.
 *
 * @param data address of the first element, in the memory of the tensor's device; 0 for no elements
 * @param elements number of elements
 * @param bytes of all elements, packed
 * @param shape sizes
 * @param strides steps in elements
 * @param dtype element type
 * @param deviceKind where it lies
 * @param deviceIndex which device of that kind
 * @param readOnly it must not be written
 * @param contiguous packed row-major
 */
public record TensorInfo(
    long data,
    long elements,
    long bytes,
    List<Long> shape,
    List<Long> strides,
    DType dtype,
    DeviceKind deviceKind,
    int deviceIndex,
    boolean readOnly,
    boolean contiguous) {
  static TensorInfo of(ds_tensor_info from) {
    return new TensorInfo(
        from.getData(),
        from.getElements(),
        from.getBytes(),
        sizes(from.getShape(), from.getNdim()),
        sizes(from.getStrides(), from.getNdim()),
        DType.of(from.getDtype()),
        DeviceKind.of(from.getDevice_kind()),
        from.getDevice_index(),
        from.getRead_only(),
        from.getContiguous());
  }

  static List<Long> sizes(long[] all, int ndim) {
    return Arrays.stream(all, 0, ndim).boxed().toList();
  }
}
