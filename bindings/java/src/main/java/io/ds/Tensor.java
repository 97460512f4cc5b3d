package io.ds;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.List;

/**
 * Numbers with shape and type, row-major, in the library's memory or in a direct buffer of the program.
 *
 * <p>{@link #wrap} and {@link #buffer} copy nothing: both sides see the same bytes. Memory stays valid as long as a buffer or a
 * tensor of it is reachable, also after {@link #close()}.
 */
public final class Tensor extends NativeObject {
  Tensor(long handle) {
    super(handle, Native::end_ds_tensor);
  }

  /**
   * Makes a tensor of zeros.
   *
   * @param type of its elements
   * @param shape sizes, up to 8; none for a single number
   * @return a new tensor in memory of the library
   */
  public static Tensor zeros(DType type, long... shape) {
    return Marshal.tensor(out -> Native.ds_tensor_create(type.code, shape, shape.length, out));
  }

  /**
   * Makes a tensor of zeros in locked memory, in huge pages where it is large: what files are read into and written from fastest.
   *
   * @param type of its elements
   * @param shape sizes, up to 8; none for a single number
   * @return a new tensor, whose memory goes with its last user
   * @throws DsException.OutOfMemory also where the limit of locked memory is too low
   */
  public static Tensor pinned(DType type, long... shape) {
    return Marshal.tensor(out -> Native.ds_pinned_tensor(type.code, shape, shape.length, out));
  }

  /**
   * Whether the memory is that of {@link #pinned}, locked in its place.
   *
   * @return true for views of it too
   */
  public boolean isPinned() {
    boolean[] out = new boolean[1];
    Native.ds_tensor_is_pinned(this, out);
    return out[0];
  }

  /**
   * Makes a tensor of a direct buffer's memory, from its position to its limit, without a copy. The buffer is kept from the
   * garbage collector until the library no longer uses it.
   *
   * @param buffer direct, writable, in the machine's byte order, of exactly the tensor's size
   * @param type of its elements
   * @param shape sizes
   * @return a tensor that shares the memory
   */
  public static Tensor wrap(ByteBuffer buffer, DType type, long... shape) {
    return wrap(buffer, type, shape, null);
  }

  /**
   * The same with elements that do not lie packed.
   *
   * @param buffer direct, writable, in the machine's byte order, up to the last element at least
   * @param type of its elements
   * @param shape sizes
   * @param strides steps in elements, not negative, as many as sizes; null means packed
   * @return a tensor that shares the memory
   */
  public static Tensor wrap(ByteBuffer buffer, DType type, long[] shape, long[] strides) {
    Marshal.writable(buffer);
    if (type.bytes() > 1 && buffer.order() != ByteOrder.nativeOrder()) {
      throw new IllegalArgumentException("the buffer's byte order is " + buffer.order() + ", the machine's is "
          + ByteOrder.nativeOrder() + ": say buffer.order(ByteOrder.nativeOrder()) before filling it");
    }
    if (strides != null && strides.length != shape.length) {
      throw new IllegalArgumentException(strides.length + " strides for " + shape.length + " sizes");
    }
    long needed = Math.multiplyExact(extent(shape, strides), (long) type.bytes());
    if (strides == null ? buffer.remaining() != needed : buffer.remaining() < needed) {
      throw new IllegalArgumentException("the buffer has " + buffer.remaining() + " bytes; a tensor of this shape and type needs "
          + needed);
    }
    return Marshal.tensor(
        out -> Native.ds_tensor_from_buffer(buffer, type.code, shape, strides, shape.length, new Marshal.Kept(buffer), out));
  }

  /** Elements from the first to the last one in memory. */
  private static long extent(long[] shape, long[] strides) {
    long packed = 1;
    long last = 0;
    for (int i = 0; i < shape.length; ++i) {
      if (shape[i] < 0 || strides != null && strides[i] < 0) {
        throw new IllegalArgumentException("size or stride " + i + " is negative");
      }
      packed = Math.multiplyExact(packed, shape[i]);
      if (strides != null && shape[i] > 0) {
        last = Math.addExact(last, Math.multiplyExact(shape[i] - 1, strides[i]));
      }
    }
    return strides == null || packed == 0 ? packed : last + 1;
  }

  /**
   * Copies numbers into a new float32 tensor.
   *
   * @param values row-major
   * @param shape sizes; none for one dimension
   * @return a new tensor
   */
  public static Tensor of(float[] values, long... shape) {
    return filled(DType.FLOAT32, values, values.length, shape);
  }

  /**
   * Copies numbers into a new float64 tensor.
   *
   * @param values row-major
   * @param shape sizes; none for one dimension
   * @return a new tensor
   */
  public static Tensor of(double[] values, long... shape) {
    return filled(DType.FLOAT64, values, values.length, shape);
  }

  /**
   * Copies numbers, such as token ids, into a new int32 tensor.
   *
   * @param values row-major
   * @param shape sizes; none for one dimension
   * @return a new tensor
   */
  public static Tensor of(int[] values, long... shape) {
    return filled(DType.INT32, values, values.length, shape);
  }

  /**
   * Copies numbers into a new int64 tensor.
   *
   * @param values row-major
   * @param shape sizes; none for one dimension
   * @return a new tensor
   */
  public static Tensor of(long[] values, long... shape) {
    return filled(DType.INT64, values, values.length, shape);
  }

  private static Tensor filled(DType type, Object values, int count, long[] shape) {
    Tensor made = zeros(type, shape.length == 0 ? new long[] {count} : shape);
    try {
      Native.write_array(made, values, type.code);
      return made;
    } catch (RuntimeException | Error e) {
      made.close();
      throw e;
    }
  }

  /**
   * Takes a tensor of DLPack 1.x without a copy, by the address of its {@code DLManagedTensorVersioned}.
   *
   * @param address afterwards the library's, which calls its deleter; on failure still the caller's
   * @param stream a {@code cudaStream_t} that is waited for first; 0 for host memory
   * @return a tensor that shares the memory
   */
  public static Tensor fromDlpack(long address, long stream) {
    return Marshal.tensor(out -> Native.ds_tensor_from_dlpack(address, stream, out));
  }

  /**
   * The same for the struct before DLPack 1.0, {@code DLManagedTensor}.
   *
   * @param address as in {@link #fromDlpack}
   * @param stream as in {@link #fromDlpack}
   * @return a tensor that shares the memory
   */
  public static Tensor fromDlpackLegacy(long address, long stream) {
    return Marshal.tensor(out -> Native.ds_tensor_from_dlpack_legacy(address, stream, out));
  }

  /**
   * Exports the tensor for another native library without a copy.
   *
   * @param stream of GPU memory any; 0 for host memory
   * @return address of a {@code DLManagedTensorVersioned}, whose deleter must be called once
   */
  public long toDlpack(long stream) {
    return Marshal.handle(out -> Native.ds_tensor_to_dlpack(this, stream, out));
  }

  /**
   * The same for the struct before DLPack 1.0.
   *
   * @param stream as in {@link #toDlpack}
   * @return address of a {@code DLManagedTensor}, whose deleter must be called once
   */
  public long toDlpackLegacy(long stream) {
    return Marshal.handle(out -> Native.ds_tensor_to_dlpack_legacy(this, stream, out));
  }

  /**
   * Type, shape, place and address.
   *
   * @return what the tensor is now
   */
  public TensorInfo info() {
    try (ds_tensor_info info = new ds_tensor_info()) {
      Native.ds_tensor_describe(this, info);
      return TensorInfo.of(info);
    }
  }

  /**
   * Sizes of the dimensions.
   *
   * @return {@code info().shape()}
   */
  public List<Long> shape() {
    return info().shape();
  }

  /**
   * The memory of the tensor, without a copy: what is written through the buffer is in the tensor and the other way round. It
   * stays valid as long as the buffer, or one made from it, is reachable. The buffer of a read-only tensor is read-only.
   *
   * @return a direct buffer in the machine's byte order
   * @throws UnsupportedOperationException for a tensor that is not packed or not in host memory: use {@link #read}
   */
  public ByteBuffer buffer() {
    TensorInfo info = info();
    if (info.deviceKind() != DeviceKind.CPU || !info.contiguous()) {
      throw new UnsupportedOperationException("only packed host memory can be a ByteBuffer; this tensor is "
          + (info.contiguous() ? "on a GPU" : "not packed") + ": copy it with read");
    }
    if (info.elements() == 0) {
      return Marshal.allocate(0);
    }
    if (info.bytes() > Integer.MAX_VALUE) {
      throw new UnsupportedOperationException(info.bytes() + " bytes are more than a ByteBuffer holds");
    }
    // A second handle of the same memory, which lives as long as the buffer; buffers made from it refer to it.
    long memory = Marshal.handle(out -> Native.ds_tensor_from_dlpack(toDlpack(0), 0, out));
    ByteBuffer buffer;
    try {
      buffer = (ByteBuffer) Native.buffer_at(info.data(), info.bytes());
      onceUnreachable(buffer, () -> Native.end_ds_tensor(memory));
    } catch (RuntimeException | Error e) {
      Native.end_ds_tensor(memory);
      throw e;
    }
    return (info.readOnly() ? buffer.asReadOnlyBuffer() : buffer).order(ByteOrder.nativeOrder());
  }

  /**
   * Copies all elements, packed, to a direct buffer from its position to its limit, which must be of that size; the position
   * stays.
   *
   * @param destination direct and writable
   */
  public void read(ByteBuffer destination) {
    Native.ds_tensor_read(this, destination);
  }

  /**
   * Copies packed elements into the tensor from a direct buffer, from its position to its limit, which must be of that size;
   * the position stays.
   *
   * @param source direct
   * @throws DsException.State when the tensor is read-only
   */
  public void write(ByteBuffer source) {
    Native.ds_tensor_write(this, source);
  }

  /** How many elements there are, of this type. */
  private int elements(DType type) {
    TensorInfo info = info();
    if (info.dtype() != type) {
      throw new IllegalArgumentException("the tensor is of " + info.dtype() + ", not " + type);
    }
    if (info.elements() > Integer.MAX_VALUE - 8) {
      throw new UnsupportedOperationException(info.elements() + " elements are more than a Java array holds");
    }
    return (int) info.elements();
  }

  /**
   * Copies the elements of a float32 tensor.
   *
   * @return row-major
   */
  public float[] floats() {
    float[] values = new float[elements(DType.FLOAT32)];
    Native.read_array(this, values, DType.FLOAT32.code);
    return values;
  }

  /**
   * Copies the elements of a float64 tensor.
   *
   * @return row-major
   */
  public double[] doubles() {
    double[] values = new double[elements(DType.FLOAT64)];
    Native.read_array(this, values, DType.FLOAT64.code);
    return values;
  }

  /**
   * Copies the elements of an int32 tensor, such as token ids.
   *
   * @return row-major
   */
  public int[] ints() {
    int[] values = new int[elements(DType.INT32)];
    Native.read_array(this, values, DType.INT32.code);
    return values;
  }

  /**
   * Copies the elements of an int64 tensor.
   *
   * @return row-major
   */
  public long[] longs() {
    long[] values = new long[elements(DType.INT64)];
    Native.read_array(this, values, DType.INT64.code);
    return values;
  }

  /**
   * Copies the elements of a uint8 tensor.
   *
   * @return row-major
   */
  public byte[] bytes() {
    byte[] values = new byte[elements(DType.UINT8)];
    Native.read_array(this, values, DType.UINT8.code);
    return values;
  }

  /**
   * The value of a tensor of one element.
   *
   * @return converted to double
   */
  public double item() {
    double[] out = new double[1];
    Native.ds_tensor_item(this, out);
    return out[0];
  }

  /**
   * Copies tensors one after another into a new one of one dimension.
   *
   * @param tensors of one type in host memory, one or more
   * @return all elements
   */
  public static Tensor flatten(Tensor... tensors) {
    return Marshal.tensor(out -> Native.ds_tensor_flatten(tensors, tensors.length, out));
  }

  /**
   * Views of the pieces of this flat tensor, without a copy; each is to be closed.
   *
   * @param shapesLike tensors that give the shapes, in order
   * @return as many tensors, which share and keep the memory
   */
  public Tensor[] unflatten(Tensor... shapesLike) {
    long[] handles = new long[shapesLike.length];
    Native.ds_tensor_unflatten(this, shapesLike, shapesLike.length, handles);
    Tensor[] pieces = new Tensor[handles.length];
    for (int i = 0; i < pieces.length; ++i) {
      pieces[i] = new Tensor(handles[i]);
    }
    return pieces;
  }

  /**
   * A tensor in 8 or 4 bits.
   *
   * @param codes uint8
   * @param scales float32, one per block
   */
  public record Quantized(Tensor codes, Tensor scales) implements AutoCloseable {
    @Override
    public void close() {
      codes.close();
      scales.close();
    }
  }

  /**
   * Quantises numbers to 8 or 4 bits with a float32 scale per block, the format of ZeRO++.
   *
   * @param bits 8 or 4
   * @param blockSize elements that share a scale: even, 2 to 512
   * @return codes and scales
   */
  public Quantized quantize(int bits, long blockSize) {
    long[] codes = new long[1];
    long[] scales = new long[1];
    Native.ds_tensor_quantize(this, bits, blockSize, codes, scales);
    return new Quantized(new Tensor(codes[0]), new Tensor(scales[0]));
  }

  /**
   * Writes code * scale to every element of this tensor.
   *
   * @param quantized as {@link #quantize} gave it
   * @param bits as it was given
   * @param blockSize as it was given
   */
  public void dequantize(Quantized quantized, int bits, long blockSize) {
    Native.ds_tensor_dequantize(quantized.codes(), quantized.scales(), bits, blockSize, this);
  }

  /**
   * How numbers become codes by groups.
   *
   * @param bits 8 or 4
   * @param groupSize elements that share a scale: even, 2 or more
   * @param asymmetric whether groups have minima
   * @param seed 0 or more: stochastic rounding drawn from it; -1: to the nearest
   */
  public record GroupFormat(int bits, long groupSize, boolean asymmetric, long seed) {}

  /**
   * Quantises numbers by groups; a number comes back within half a step, or within one step when it
   * is rounded stochastically.
   *
   * @param format how
   * @return codes, and scales with the minima in their second row
   */
  public Quantized quantizeGroups(GroupFormat format) {
    long[] codes = new long[1];
    long[] scales = new long[1];
    Native.ds_tensor_quantize_groups(
        this, format.bits(), format.groupSize(), format.asymmetric(), format.seed(), codes, scales);
    return new Quantized(new Tensor(codes[0]), new Tensor(scales[0]));
  }

  /**
   * Writes what codes by groups stand for to every element of this tensor.
   *
   * @param quantized as {@link #quantizeGroups} gave it
   * @param format as it was given
   */
  public void dequantizeGroups(Quantized quantized, GroupFormat format) {
    Native.ds_tensor_dequantize_groups(
        quantized.codes(), quantized.scales(), format.bits(), format.groupSize(), this);
  }

  /**
   * This tensor after {@link #quantizeGroups} and {@link #dequantizeGroups}.
   *
   * @param format how
   * @return of the same type and shape
   */
  public Tensor fakeQuantize(GroupFormat format) {
    return Marshal.tensor(
        out ->
            Native.ds_tensor_fake_quantize(
                this, format.bits(), format.groupSize(), format.asymmetric(), format.seed(), out));
  }

  /**
   * The softmax of this tensor's attention scores along the last dimension.
   *
   * @param mask uint8, 0 where a key is hidden; null: none is
   * @param scale what scores are multiplied by
   * @param causal whether queries see no later keys
   * @return of the same type and shape
   */
  public Tensor softmax(Tensor mask, double scale, boolean causal) {
    return Marshal.tensor(out -> Native.ds_tensor_softmax(this, mask, scale, causal, out));
  }

  /**
   * The gradient with respect to the scores of which this tensor is the softmax.
   *
   * @param gradient with respect to this tensor
   * @param scale as {@link #softmax} was given it
   * @return of the same type and shape
   */
  public Tensor softmaxBackward(Tensor gradient, double scale) {
    return Marshal.tensor(out -> Native.ds_tensor_softmax_backward(this, gradient, scale, out));
  }

  /**
   * Splits packed projections [batch, tokens, parts * heads * size] into heads.
   *
   * @param bias added to every row; null: none
   * @param parts 1, or 3 for queries, keys and values side by side
   * @param heads of each part
   * @return [parts, batch, heads, tokens, size]
   */
  public Tensor splitHeads(Tensor bias, int parts, int heads) {
    return Marshal.tensor(out -> Native.ds_tensor_split_heads(this, bias, parts, heads, out));
  }

  /**
   * The inverse of {@link #splitHeads} without a bias.
   *
   * @return [batch, tokens, parts * heads * size]
   */
  public Tensor mergeHeads() {
    return Marshal.tensor(out -> Native.ds_tensor_merge_heads(this, out));
  }

  @Override
  public String toString() {
    if (isClosed()) {
      return "Tensor[closed]";
    }
    TensorInfo info = info();
    return "Tensor[" + info.dtype() + " " + info.shape() + (info.deviceKind() == DeviceKind.CPU ? "]" : " on a GPU]");
  }
}
