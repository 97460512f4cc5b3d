package io.ds;

/** Where numbers lie. */
public enum DeviceKind {
  /** Memory of the host. */
  CPU(ds_device_code.DS_DEVICE_CPU),
  /** Memory of a GPU. */
  CUDA(ds_device_code.DS_DEVICE_CUDA);

  final int code;

  DeviceKind(int code) {
    this.code = code;
  }

  static DeviceKind of(int code) {
    for (DeviceKind one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave a DeviceKind that this version does not know: " + code);
  }
}
