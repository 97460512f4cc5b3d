package io.ds;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.ReadOnlyBufferException;
import java.util.List;
import org.junit.jupiter.api.Test;

class TensorTest {
  @Test
  void aWrappedBufferAndABufferOfItAreTheSameMemory() {
    ByteBuffer memory = Marshal.allocate(24);
    try (Tensor tensor = Tensor.wrap(memory, DType.FLOAT32, 2, 3)) {
      ByteBuffer seen = tensor.buffer();
      memory.putFloat(8, 2.5f);
      assertEquals(2.5f, seen.getFloat(8));
      seen.putFloat(20, -1);
      assertEquals(-1, memory.getFloat(20));
      assertArrayEquals(new float[] {0, 0, 2.5f, 0, 0, -1}, tensor.floats());
      try (Tensor again = Tensor.wrap(seen, DType.FLOAT32, 6)) {
        assertEquals(tensor.info().data(), again.info().data(), "addresses prove that nothing was copied");
      }
      TensorInfo info = tensor.info();
      assertEquals(new TensorInfo(info.data(), 6, 24, List.of(2L, 3L), List.of(3L, 1L), DType.FLOAT32, DeviceKind.CPU,
          info.deviceIndex(), false, true), info);
    }
  }

  @Test
  void aBufferIsWrappedFromItsPositionToItsLimit() {
    ByteBuffer memory = Marshal.allocate(40);
    try (Tensor whole = Tensor.wrap(memory, DType.INT32, 10);
        Tensor part = Tensor.wrap(memory.position(8).limit(24), DType.INT32, 4)) {
      assertEquals(whole.info().data() + 8, part.info().data());
      try (Tensor source = Tensor.of(new int[] {1, 2, 3, 4})) {
        source.read(memory);
        assertArrayEquals(new int[] {0, 0, 1, 2, 3, 4, 0, 0, 0, 0}, whole.ints());
        source.write(memory.duplicate());
        assertEquals(8, memory.position());
      }
    }
  }

  @Test
  void viewsOfAModelAreItsMemory() {
    try (Model model = Fixtures.ownModel(); Tensor view = model.viewParameter(1); Tensor twice = model.viewParameter(1);
        Tensor copy = model.getParameter(1)) {
      assertEquals(view.info().data(), twice.info().data());
      assertNotEquals(view.info().data(), copy.info().data());
      view.buffer().putFloat(4, 7);
      try (Tensor now = model.getParameter(1)) {
        assertArrayEquals(new float[] {0, 7, 0, 0}, now.floats());
      }
    }
  }

  @Test
  void aBufferOutlivesItsTensor() throws InterruptedException {
    Tensor tensor = Tensor.zeros(DType.FLOAT32, 1 << 20);
    FloatBuffer numbers = tensor.buffer().asFloatBuffer().slice(5, 100);
    long before = memory();
    tensor.close();
    System.gc();
    numbers.put(0, 3); // a use after free would be found by the garbage of other tests, or kill the process
    assertEquals(3, numbers.get(0));
    assertTrue(memory() >= 4 << 20, "the buffer holds the memory");
    WeakReference<FloatBuffer> gone = new WeakReference<>(numbers);
    numbers = null;
    assertTrue(Fixtures.collectedWithin(10, () -> gone.get() == null && memory() <= before - (4 << 20)),
        "the memory is given back with the buffer");
  }

  /** Bytes of the library's own memory. */
  private static long memory() {
    return LeakTest.libraryBytes();
  }

  @Test
  void theLibraryKeepsAWrappedBuffer() throws InterruptedException {
    ByteBuffer memory = Marshal.allocate(16);
    WeakReference<ByteBuffer> watched = new WeakReference<>(memory);
    Tensor tensor = Tensor.wrap(memory, DType.FLOAT32, 4);
    memory = null;
    assertFalse(Fixtures.collectedWithin(1, () -> watched.get() == null));
    tensor.close();
    assertTrue(Fixtures.collectedWithin(10, () -> watched.get() == null), "and lets go of it");
  }

  @Test
  void whatCannotBeSharedIsRefused() {
    assertThrows(IllegalArgumentException.class, () -> Tensor.wrap(ByteBuffer.allocate(16), DType.FLOAT32, 4));
    ByteBuffer memory = Marshal.allocate(16);
    assertThrows(ReadOnlyBufferException.class, () -> Tensor.wrap(memory.asReadOnlyBuffer(), DType.FLOAT32, 4));
    assertThrows(IllegalArgumentException.class, () -> Tensor.wrap(memory, DType.FLOAT32, 5));
    assertThrows(IllegalArgumentException.class, () -> Tensor.wrap(memory, DType.FLOAT32, -4));
    assertThrows(ArithmeticException.class, () -> Tensor.wrap(memory, DType.FLOAT32, Long.MAX_VALUE, 4));
    ByteOrder other = ByteOrder.nativeOrder() == ByteOrder.LITTLE_ENDIAN ? ByteOrder.BIG_ENDIAN : ByteOrder.LITTLE_ENDIAN;
    String message = assertThrows(IllegalArgumentException.class,
        () -> Tensor.wrap(memory.duplicate().order(other), DType.FLOAT32, 4)).getMessage();
    assertTrue(message.contains("nativeOrder"), message);
    try (Tensor bytes = Tensor.wrap(memory.duplicate().order(other), DType.UINT8, 16)) {
      assertEquals(16, bytes.bytes().length);
    }
    try (Tensor numbers = Tensor.of(new double[] {1, 2})) {
      assertThrows(IllegalArgumentException.class, numbers::floats);
      assertThrows(DsException.InvalidArgument.class, () -> numbers.read(Marshal.allocate(15)));
      assertThrows(IllegalArgumentException.class, () -> numbers.read(ByteBuffer.allocate(16)));
      assertThrows(DsException.InvalidArgument.class, numbers::item);
    }
    assertThrows(DsException.InvalidArgument.class, () -> Tensor.zeros(DType.FLOAT32, 1, 1, 1, 1, 1, 1, 1, 1, 1));
  }

  @Test
  void stridesNeedTheMemoryThatTheyReach() {
    ByteBuffer memory = Marshal.allocate(4 * 6);
    memory.asFloatBuffer().put(new float[] {0, 1, 2, 3, 4, 5});
    long[] shape = {3, 2};
    long[] strides = {1, 3}; // the transpose of [2, 3]
    try (Tensor transposed = Tensor.wrap(memory, DType.FLOAT32, shape, strides)) {
      assertArrayEquals(new float[] {0, 3, 1, 4, 2, 5}, transposed.floats());
      assertThrows(UnsupportedOperationException.class, transposed::buffer);
    }
    assertThrows(IllegalArgumentException.class, () -> Tensor.wrap(memory, DType.FLOAT32, shape, new long[] {1, 4}));
    assertThrows(IllegalArgumentException.class, () -> Tensor.wrap(memory, DType.FLOAT32, shape, new long[] {1}));
  }

  @Test
  void flatPiecesAndQuantisedNumbersComeBack() {
    try (Tensor a = Tensor.of(new float[] {1, 2, 3, 4}, 2, 2); Tensor b = Tensor.of(new float[] {5, 6});
        Tensor flat = Tensor.flatten(a, b)) {
      assertArrayEquals(new float[] {1, 2, 3, 4, 5, 6}, flat.floats());
      Tensor[] pieces = flat.unflatten(a, b);
      assertEquals(List.of(2L, 2L), pieces[0].shape());
      assertEquals(flat.info().data() + 16, pieces[1].info().data());
      for (Tensor piece : pieces) {
        piece.close();
      }
      try (Tensor.Quantized small = flat.quantize(8, 2); Tensor back = Tensor.zeros(DType.FLOAT32, 6)) {
        assertEquals(DType.UINT8, small.codes().info().dtype());
        back.dequantize(small, 8, 2);
        float[] values = back.floats();
        for (int i = 0; i < 6; ++i) {
          assertEquals(i + 1, values[i], 0.05);
        }
      }
    }
  }

  @Test
  void expertsChooseDispatchAndCombine() {
    String options = "{\"top_k\": 2, \"route_norm\": true}";
    try (Tensor logits = Tensor.of(new float[] {0, 2, 1, 3, -1, 0.5f}, 2, 3);
        Experts.Gate gate = Experts.gate(logits, null, options);
        Experts.SortedRoutes routes = Experts.sort(gate.chosen(), 3);
        Tensor tokens = Tensor.of(new float[] {1, 2}, 2, 1);
        Tensor rows = Experts.dispatch(tokens, routes.order(), 2, null);
        Tensor back = Experts.combine(rows, routes.places(), null);
        Tensor dots = Experts.weightsBackward(rows, routes.places(), tokens);
        Tensor ones = Tensor.of(new float[] {1, 1, 1, 1}, 2, 2);
        Tensor dx = Experts.gateBackward(logits, gate, ones, null, options)) {
      assertArrayEquals(new int[] {1, 2, 0, 2}, gate.chosen().ints());
      float[] weights = gate.weights().floats();
      assertEquals(1, weights[0] + weights[1], 1e-6f);
      assertEquals(Math.E, weights[0] / weights[1], 1e-5);
      assertArrayEquals(new float[] {2, 1, 1, 2}, rows.floats());
      assertArrayEquals(new float[] {2, 4}, back.floats());
      assertArrayEquals(new float[] {1, 1, 4, 4}, dots.floats());
      assertArrayEquals(new float[6], dx.floats(), 1e-6f);
      assertEquals(List.of(2L), gate.losses().shape());
      assertThrows(DsException.class, () -> Experts.gate(logits, null, "{\"topk\": 2}"));
    }
  }

  @Test
  void groupsSoftmaxAndHeads() {
    Tensor.GroupFormat format = new Tensor.GroupFormat(4, 2, true, -1);
    try (Tensor x = Tensor.of(new float[] {1, 2, 3, 4}, 1, 2, 2); Tensor.Quantized small = x.quantizeGroups(format);
        Tensor back = Tensor.zeros(DType.FLOAT32, 4); Tensor same = x.fakeQuantize(format)) {
      back.dequantizeGroups(small, format);
      assertArrayEquals(new float[] {1, 2, 3, 4}, back.floats(), 1e-6f);
      assertArrayEquals(back.floats(), same.floats());
      try (Tensor y = x.softmax(null, 1, true); Tensor dx = y.softmaxBackward(x, 1)) {
        assertArrayEquals(new float[] {1, 0, 0.26894143f, 0.7310586f}, y.floats(), 1e-6f);
        assertArrayEquals(new float[] {0, 0, -0.19661193f, 0.19661193f}, dx.floats(), 1e-6f);
      }
      try (Tensor split = x.splitHeads(null, 1, 2); Tensor merged = split.mergeHeads()) {
        assertEquals(List.of(1L, 1L, 2L, 2L, 1L), split.shape());
        assertArrayEquals(new float[] {1, 3, 2, 4}, split.floats());
        assertArrayEquals(x.floats(), merged.floats());
      }
    }
  }

  @Test
  void dlpackPassesTheMemoryOn() {
    try (Tensor tensor = Tensor.of(new long[] {1, 2, 3}); Tensor other = Tensor.fromDlpack(tensor.toDlpack(0), 0);
        Tensor legacy = Tensor.fromDlpackLegacy(tensor.toDlpackLegacy(0), 0)) {
      assertEquals(tensor.info().data(), other.info().data());
      assertEquals(tensor.info().data(), legacy.info().data());
      assertArrayEquals(new long[] {1, 2, 3}, legacy.longs());
    }
  }

  @Test
  void emptyAndSingleNumbersWork() {
    try (Tensor none = Tensor.zeros(DType.FLOAT32, 0, 3); Tensor one = Tensor.zeros(DType.FLOAT64)) {
      assertEquals(0, none.buffer().capacity());
      assertEquals(0, none.floats().length);
      assertEquals(List.of(), one.shape());
      one.buffer().putDouble(0, 4.5);
      assertEquals(4.5, one.item());
      assertEquals("Tensor[FLOAT64 []]", one.toString());
    }
  }
}
