package io.ds;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;

/** 10,000 objects of each kind, made and ended, leave nothing behind. */
class LeakTest {
  /** Bytes that the library holds now, by its own account. */
  static long libraryBytes() {
    Map<String, Object> report = Json.parseObject(Ds.memoryReport());
    long sum = 0;
    for (String place : List.of("host", "gpus")) {
      Map<?, ?> total = (Map<?, ?>) ((Map<?, ?>) report.get(place)).get("total");
      sum += ((Number) total.get("now")).longValue();
    }
    return sum;
  }

  private static long residentBytes() {
    try {
      return Long.parseLong(Files.readString(Path.of("/proc/self/statm")).split(" ")[1]) * 4096;
    } catch (IOException e) {
      throw new IllegalStateException(e);
    }
  }

  /** The same when what earlier tests left to the garbage collector is gone: cleaners run some time after it. */
  private static long restingBytes() {
    long now = libraryBytes();
    for (int alike = 0; alike < 3; ) {
      System.gc();
      try {
        Thread.sleep(10);
      } catch (InterruptedException e) {
        throw new IllegalStateException(e);
      }
      long before = now;
      now = libraryBytes();
      alike = now == before ? alike + 1 : 0;
    }
    return now;
  }

  /** Runs it until memory has settled, then 10,000 times; a leak of 1 KiB each would be 10 MB. */
  private static void grows(String what, Runnable once) {
    grows(what, 10_000, once);
  }

  private static void grows(String what, int times, Runnable once) {
    for (int i = 0; i < times / 5; ++i) {
      once.run();
    }
    long held = restingBytes();
    long resident = residentBytes();
    long begin = System.nanoTime();
    for (int i = 0; i < times; ++i) {
      once.run();
    }
    long elapsed = (System.nanoTime() - begin) / 1_000_000;
    System.gc();
    long growth = residentBytes() - resident;
    System.out.printf("leak: %s, %d times, %d ms: resident memory grew by %d KiB%n", what, times, elapsed, growth / 1024);
    long left = libraryBytes();
    // Less is what an earlier test left to a cleaner that comes late on a busy machine.
    assertTrue(left <= held, what + " left " + (left - held) + " bytes");
    assertTrue(growth < (8 << 20), what + " grew by " + growth + " bytes");
  }

  @Test
  void tensors() {
    grows("tensors", () -> Tensor.zeros(DType.FLOAT32, 16).close());
    ByteBuffer memory = Marshal.allocate(1024);
    grows("wrapped buffers", () -> Tensor.wrap(memory, DType.FLOAT32, 256).close());
  }

  @Test
  void models() {
    grows("models of own parameters", () -> Fixtures.ownModel().close());
    try (Model model = Fixtures.ownModel()) {
      // two milliseconds each: -Dds.test.engines=10000 makes as many as of the others
      grows("engines and steps", Integer.getInteger("ds.test.engines", 1_000), () -> {
        try (Engine engine = Engine.create(Fixtures.CONFIG, model); Tensor a = Tensor.zeros(DType.FLOAT32, 2, 3);
            Tensor b = Tensor.zeros(DType.FLOAT32, 4)) {
          engine.addGradients(a, b);
          engine.step();
          engine.discardGradients();
        }
      });
    }
    try (Model model = Fixtures.model()) {
      grows("generators", () -> Generator.of(model).close());
    }
  }

  @Test
  void textsAndErrors() {
    try (Tokenizer bytes = Tokenizer.ofBytes()) {
      grows("texts", () -> assertEquals("text \uD83D\uDE00", bytes.decode(bytes.encode("text \uD83D\uDE00"))));
      grows("tokenizers", () -> Tokenizer.ofBytes().close());
      grows("errors", () -> {
        try {
          bytes.tokenToId("no such token");
        } catch (DsException.NotFound e) {
          return;
        }
        throw new AssertionError();
      });
    }
    grows("data sets", 2_000, () -> Fixtures.dataset().close());
    grows("groups of one", () -> Comm.create(0, 1, null, null).close());
  }

  @Test
  void callbacks() {
    AtomicInteger calls = new AtomicInteger();
    try (Model model = Fixtures.ownModel(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      grows("listeners set", () -> engine.setProgress((call, done, total) -> true));
    }
    try (Model model = Fixtures.model(); Generator generator = Generator.of(model)) {
      GenerateOptions options = new GenerateOptions().maxTokens(10);
      grows("token callbacks by ten", 1_000, () -> generator.generate(new int[] {1}, options, token -> calls.incrementAndGet() > 0));
      int[][] prompts = {{1}, {2, 3}};
      grows("texts together", 1_000, () -> generator.generateBatch(prompts, options, 0, (text, token) -> calls.incrementAndGet() > 0));
      grows("texts together that fail", 2_000, () -> {
        try {
          generator.generateBatch(prompts, options, 0, (text, token) -> {
            throw new IllegalStateException("mine");
          });
        } catch (IllegalStateException e) {
          return;
        }
        throw new AssertionError();
      });
      grows("token callbacks that throw", 2_000, () -> {
        try {
          generator.generate(new int[] {1}, options, token -> {
            throw new IllegalStateException("mine");
          });
        } catch (IllegalStateException e) {
          return;
        }
        throw new AssertionError();
      });
    }
    assertTrue(calls.get() >= 10_000);
    Ds.setLog((level, component, text) -> calls.incrementAndGet());
    grows("log sinks set", () -> Ds.setLog((level, component, text) -> calls.incrementAndGet()));
    Ds.setLog(null);
  }

  @Test
  void parameters() {
    List<Parameter> many = List.of(Parameter.zeros("a", 3).group("g").alias("b").expert(1), Parameter.zeros("c", 1));
    grows("refused lists of parameters", 2_000, () -> {
      try {
        Model.ofParameters(List.of(many.get(0), many.get(0))).close();
      } catch (DsException.InvalidArgument e) {
        return;
      }
      throw new AssertionError();
    });
  }
}
