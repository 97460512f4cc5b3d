package io.ds;

/** What carries reads and writes of files out. */
public enum IoBackend {
  /** io_uring. */
  URING(ds_io_backend_code.DS_IO_URING),
  /** The kernel's older asynchronous I/O, through libaio. */
  LIBAIO(ds_io_backend_code.DS_IO_LIBAIO),
  /** Threads that read and write with ordinary calls. */
  THREADS(ds_io_backend_code.DS_IO_THREADS);

  final int code;

  IoBackend(int code) {
    this.code = code;
  }

  static IoBackend of(int code) {
    for (IoBackend one : values()) {
      if (one.code == code) {
        return one;
      }
    }
    throw new IllegalArgumentException("the library gave an IoBackend that this version does not know: " + code);
  }
}
