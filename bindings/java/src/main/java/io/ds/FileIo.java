package io.ds;

import java.nio.file.Path;

/**
 * Reads and writes of files that go on beside the program, past the page cache where the file system allows that. Reads and
 * writes have threads and queues of their own. Any thread may use one; tensors must be packed, in host memory.
 */
public final class FileIo extends NativeObject {
  /**
   * Makes one with the defaults of the configuration's {@code aio}.
   */
  public FileIo() {
    this(null);
  }

  /**
   * Makes one.
   *
   * @param options JSON with keys of the configuration's {@code aio}: block_size, queue_depth, intra_op_parallelism,
   *     single_submit, overlap_events, backend; and validate, checksum. null for the defaults
   * @throws DsException.Unsupported when the backend that is named cannot be used here
   */
  public FileIo(String options) {
    super(Marshal.handle(out -> Native.ds_io_create(options, out)), Native::end_ds_io);
  }

  /**
   * How it reads and writes.
   *
   * @return the options, and the backend that was chosen
   */
  public IoInfo info() {
    try (ds_io_info info = new ds_io_info()) {
      Native.ds_io_describe(this, info);
      return IoInfo.of(info);
    }
  }

  /**
   * Fills a tensor from an offset of a file on.
   *
   * @param path the file
   * @param into filled when this returns
   * @param offset of the first byte
   * @throws DsException.Corrupt when the file ends before, or a check fails
   */
  public void read(Path path, Tensor into, long offset) {
    Native.run_transfer(this, path.toString(), into, offset, false, false);
  }

  /**
   * Writes a tensor at an offset of a file, which is made where there is none.
   *
   * @param path the file
   * @param from is read
   * @param offset of the first byte
   */
  public void write(Path path, Tensor from, long offset) {
    Native.run_transfer(this, path.toString(), from, offset, true, false);
  }

  /**
   * Fills a tensor that has the size of a whole file.
   *
   * @param path the file
   * @param into filled when this returns
   */
  public void readFile(Path path, Tensor into) {
    Native.run_transfer(this, path.toString(), into, 0, false, true);
  }

  /**
   * Makes a file of a tensor, and of nothing else.
   *
   * @param path the file
   * @param from is read
   */
  public void writeFile(Path path, Tensor from) {
    Native.run_transfer(this, path.toString(), from, 0, true, true);
  }

  /**
   * Starts {@link #read}. The memory is kept, and must not be touched before a wait for it has returned.
   *
   * @param path the file
   * @param into filled in time
   * @param offset of the first byte
   * @return a number to wait for
   */
  public long startRead(Path path, Tensor into, long offset) {
    long[] out = new long[1];
    Native.start_transfer(this, path.toString(), into, offset, false, out);
    return out[0];
  }

  /**
   * Starts {@link #write}, as {@link #startRead} does.
   *
   * @param path the file
   * @param from is read
   * @param offset of the first byte
   * @return a number to wait for
   */
  public long startWrite(Path path, Tensor from, long offset) {
    long[] out = new long[1];
    Native.start_transfer(this, path.toString(), from, offset, true, out);
    return out[0];
  }

  /**
   * Whether what was started has ended, well or not.
   *
   * @param ticket what {@link #startRead} or {@link #startWrite} gave
   * @return true when {@link #await} returns at once
   */
  public boolean isDone(long ticket) {
    boolean[] out = new boolean[1];
    Native.ds_io_test(this, ticket, out);
    return out[0];
  }

  /**
   * Waits for what was started.
   *
   * @param ticket what {@link #startRead} or {@link #startWrite} gave
   */
  public void await(long ticket) {
    Native.ds_io_wait(this, ticket, null);
  }

  /**
   * Waits for all that was started and that nobody has waited for.
   *
   * @return how many those were
   */
  public long awaitAll() {
    long[] out = new long[1];
    Native.ds_io_wait(this, 0, out);
    return out[0];
  }

  /**
   * Gives up what was started and has not ended.
   *
   * @return how many those were
   */
  public long cancel() {
    long[] out = new long[1];
    Native.ds_io_cancel(this, out);
    return out[0];
  }
}
