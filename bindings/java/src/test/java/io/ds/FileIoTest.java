package io.ds;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

class FileIoTest {
  @TempDir Path folder;

  private static float[] numbers(int count, float first) {
    float[] out = new float[count];
    for (int i = 0; i < count; ++i) {
      out[i] = first + i;
    }
    return out;
  }

  @ParameterizedTest
  @ValueSource(strings = {"auto", "io_uring", "libaio", "threads"})
  void everyWayMovesEveryByte(String backend) throws IOException {
    String options = "{\"block_size\": 1024, \"queue_depth\": 2, \"intra_op_parallelism\": 2, \"single_submit\": true,"
        + " \"overlap_events\": false, \"backend\": \"" + backend + "\"}";
    Path path = folder.resolve("numbers");
    try (FileIo io = open(options); Tensor out = Tensor.of(numbers(20_000, 3)); Tensor back = Tensor.zeros(DType.FLOAT32, 20_000)) {
      IoInfo info = io.info();
      assertEquals(new IoInfo(1024, info.alignment(), 2, 2, true, false, false, false, info.backend()), info);
      assertEquals(0, info.alignment() % 512);
      io.writeFile(path, out);
      assertEquals(80_000, Files.size(path));
      io.readFile(path, back);
      assertArrayEquals(out.floats(), back.floats());
      long ticket = io.startWrite(path, out, 100_000);
      io.await(ticket);
      assertTrue(io.isDone(ticket));
      io.read(path, back, 100_000);
      assertArrayEquals(out.floats(), back.floats());
      io.write(path, out, 4);
      io.startRead(path, back, 4);
      io.startRead(path, out, 100_000);
      assertEquals(2, io.awaitAll());
      assertArrayEquals(numbers(20_000, 3), back.floats());
      assertEquals(0, io.awaitAll());
      assertEquals(0, io.cancel());
    }
  }

  private static FileIo open(String options) {
    try {
      return new FileIo(options);
    } catch (DsException.Unsupported e) {
      Assumptions.abort(e.getMessage());
      throw e;
    }
  }

  @Test
  void whatFailsIsSaidByTheWait() throws IOException {
    Path path = folder.resolve("numbers");
    try (FileIo io = new FileIo("{\"checksum\": true, \"validate\": true}"); Tensor small = Tensor.of(numbers(10, 0));
        Tensor large = Tensor.zeros(DType.FLOAT32, 20)) {
      assertThrows(DsException.NotFound.class, () -> io.startRead(path, small, 0));
      io.writeFile(path, small);
      long ticket = io.startRead(path, large, 0);
      assertTrue(assertThrows(DsException.Corrupt.class, () -> io.await(ticket)).getMessage().contains("ends at byte 40"));
      byte[] bytes = Files.readAllBytes(path);
      bytes[5] ^= 1;
      Files.write(path, bytes);
      assertTrue(assertThrows(DsException.Corrupt.class, () -> io.readFile(path, small)).getMessage().contains("checksum"));
    }
    assertThrows(DsException.Unsupported.class, () -> new FileIo("{\"use_gds\": true}"));
    FileIo closed = new FileIo();
    closed.close();
    assertThrows(IllegalStateException.class, closed::awaitAll);
  }

  @Test
  void threadsShareOne() throws InterruptedException {
    AtomicInteger good = new AtomicInteger();
    try (FileIo io = new FileIo()) {
      List<Thread> threads = new ArrayList<>();
      for (int number = 0; number < 3; ++number) {
        int first = number;
        Thread thread = new Thread(() -> {
          Path path = folder.resolve("f" + first);
          try (Tensor out = Tensor.of(numbers(30_000, first)); Tensor back = Tensor.zeros(DType.FLOAT32, 30_000)) {
            io.writeFile(path, out);
            io.await(io.startRead(path, back, 0));
            if (back.floats()[29_999] == first + 29_999) {
              good.incrementAndGet();
            }
          }
        });
        thread.start();
        threads.add(thread);
      }
      for (Thread thread : threads) {
        thread.join();
      }
    }
    assertEquals(3, good.get());
  }

  @Test
  void pinnedMemoryIsThatOfItsViews() {
    try (Tensor pinned = Tensor.pinned(DType.FLOAT32, 3, 5); Tensor view = Tensor.wrap(pinned.buffer(), DType.FLOAT32, 15);
        Tensor other = Tensor.zeros(DType.FLOAT32, 3)) {
      assertTrue(pinned.isPinned());
      assertTrue(view.isPinned());
      assertFalse(other.isPinned());
      view.buffer().putFloat(8, 2.5f);
      assertEquals(2.5f, pinned.floats()[2]);
    }
  }
}
