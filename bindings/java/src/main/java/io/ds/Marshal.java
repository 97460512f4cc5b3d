package io.ds;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.ReadOnlyBufferException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.function.Consumer;

/** How values travel between Java and the generated layer. */
final class Marshal {
  private Marshal() {}

  /** What the library keeps while it uses memory of a buffer; of this class, so that it holds the class loader too. */
  static final class Kept {
    private final ByteBuffer buffer;

    Kept(ByteBuffer buffer) {
      this.buffer = buffer;
    }
  }

  /** UTF-8 that ends with NUL, as C wants it; null for null. */
  static byte[] utf8(String text) {
    if (text == null) {
      return null;
    }
    if (text.indexOf('\0') >= 0) {
      throw new IllegalArgumentException("a text holds the character U+0000 at " + text.indexOf('\0') + ", where C would end it");
    }
    byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
    return Arrays.copyOf(bytes, bytes.length + 1);
  }

  static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static String text(byte[] utf8) {
    return utf8 == null ? null : new String(utf8, StandardCharsets.UTF_8);
  }

  static String text(Path path) {
    return path == null ? null : path.toString();
  }

  /** The text that a call stores. */
  static String text(Consumer<byte[][]> call) {
    byte[][] out = new byte[1][];
    call.accept(out);
    return text(out[0]);
  }

  /** The handle that a call stores. */
  static long handle(Consumer<long[]> call) {
    long[] out = new long[1];
    call.accept(out);
    return out[0];
  }

  /** The tensor that a call stores. */
  static Tensor tensor(Consumer<long[]> call) {
    return new Tensor(handle(call));
  }

  /** The memory between position and limit of a direct buffer, from its first byte. */
  static ByteBuffer direct(ByteBuffer buffer) {
    if (!buffer.isDirect()) {
      throw new IllegalArgumentException("a direct ByteBuffer is needed (ByteBuffer.allocateDirect); this one is on Java's heap,"
          + " where the garbage collector moves it");
    }
    return buffer.position() == 0 && buffer.limit() == buffer.capacity() ? buffer : buffer.slice().order(buffer.order());
  }

  static ByteBuffer writable(ByteBuffer buffer) {
    if (buffer.isReadOnly()) {
      throw new ReadOnlyBufferException();
    }
    return direct(buffer);
  }

  /** Memory of the machine's byte order, which is what the library reads and writes. */
  static ByteBuffer allocate(long bytes) {
    if (bytes > Integer.MAX_VALUE) {
      throw new IllegalArgumentException(bytes + " bytes are more than a ByteBuffer holds");
    }
    return ByteBuffer.allocateDirect((int) bytes).order(ByteOrder.nativeOrder());
  }
}
