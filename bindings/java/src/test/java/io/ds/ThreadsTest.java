package io.ds;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CyclicBarrier;
import org.junit.jupiter.api.Test;

class ThreadsTest {
  /** Fails in its own way again and again, and looks whether the message is its own. */
  private static void failOften(int number, ConcurrentLinkedQueue<String> wrong) {
    String name = "token-of-" + number + "-\uD83D\uDE00";
    try (Tokenizer bytes = Tokenizer.ofBytes()) {
      for (int i = 0; i < 200; ++i) {
        try {
          bytes.tokenToId(name);
          wrong.add("no exception");
        } catch (DsException.NotFound e) {
          if (!e.getMessage().contains(name)) {
            wrong.add(number + " read: " + e.getMessage());
          }
        }
        Thread.yield(); // where virtual threads change their carrier
      }
    } catch (RuntimeException | Error e) {
      wrong.add(e.toString());
    }
  }

  @Test
  void messagesAreRightInManyThreads() throws InterruptedException {
    ConcurrentLinkedQueue<String> wrong = new ConcurrentLinkedQueue<>();
    List<Thread> threads = new ArrayList<>();
    for (int i = 0; i < 64; ++i) {
      int number = i;
      threads.add(new Thread(() -> failOften(number, wrong)));
      threads.get(i).start();
    }
    for (Thread thread : threads) {
      thread.join();
    }
    assertEquals(List.of(), List.copyOf(wrong));
  }

  @Test
  void messagesAreRightInTwoHundredVirtualThreads() throws Exception {
    Method start = null;
    try {
      start = Thread.class.getMethod("startVirtualThread", Runnable.class);
    } catch (NoSuchMethodException e) {
      assumeTrue(false, "this JDK has no virtual threads: " + Runtime.version());
    }
    ConcurrentLinkedQueue<String> wrong = new ConcurrentLinkedQueue<>();
    List<Thread> threads = new ArrayList<>();
    for (int i = 0; i < 200; ++i) {
      int number = i;
      threads.add((Thread) start.invoke(null, (Runnable) () -> failOften(number, wrong)));
    }
    for (Thread thread : threads) {
      thread.join();
    }
    assertEquals(List.of(), List.copyOf(wrong));
  }

  private static void train(int steps) {
    try (Model model = Model.create("""
        {"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 48, "n_layer": 2, "n_head": 2}""", 1);
        Dataset data = Fixtures.dataset(); Engine engine = Engine.create("{\"threads\": 1, " + Fixtures.CONFIG.substring(1), model)) {
      engine.setDataset(data);
      for (int i = 0; i < steps; ++i) {
        engine.trainBatch();
      }
    }
  }

  /** Intervals of two engines' steps overlap; how much time that saves depends on the machine and is only told. */
  @Test
  void twoEnginesOfTwoThreadsTrainAtOnce() throws Exception {
    train(5);
    long begin = System.nanoTime();
    train(60);
    train(60);
    double after = (System.nanoTime() - begin) * 1e-9;
    CyclicBarrier together = new CyclicBarrier(3);
    long[][] spans = new long[2][2];
    List<Thread> threads = new ArrayList<>();
    for (long[] span : spans) {
      threads.add(new Thread(() -> {
        try {
          together.await(20, java.util.concurrent.TimeUnit.SECONDS);
        } catch (Exception e) {
          throw new IllegalStateException(e);
        }
        span[0] = System.nanoTime();
        train(60);
        span[1] = System.nanoTime();
      }));
      threads.get(threads.size() - 1).start();
    }
    together.await(20, java.util.concurrent.TimeUnit.SECONDS);
    begin = System.nanoTime();
    for (Thread thread : threads) {
      thread.join();
    }
    double both = (System.nanoTime() - begin) * 1e-9;
    System.out.printf("overlap: two engines one after the other %.2f s, in two threads %.2f s: %.2f times as fast%n", after, both, after / both);
    assertTrue(Math.max(spans[0][0], spans[1][0]) < Math.min(spans[0][1], spans[1][1]), "the runs overlap");
  }

  @Test
  void whatWasForgottenIsFreed() throws InterruptedException {
    long before = LeakTest.libraryBytes();
    for (int i = 0; i < 8; ++i) {
      Tensor.zeros(DType.FLOAT32, 1 << 20);
    }
    assertTrue(Fixtures.collectedWithin(10, () -> LeakTest.libraryBytes() <= before), "32 MiB of forgotten tensors are freed");
  }

  @Test
  void oneOfTwoThreadsInOneObjectIsRefused() throws Exception {
    try (Model model = Fixtures.ownModel(); Engine engine = Engine.create(Fixtures.CONFIG, model); Tensor gradient = Tensor.zeros(DType.FLOAT32, 4)) {
      CyclicBarrier inside = new CyclicBarrier(2);
      java.nio.file.Path folder = java.nio.file.Files.createTempDirectory("ds-test");
      engine.setProgress((call, done, total) -> {
        if (done == 0) {
          await(inside);
          await(inside);
        }
        return true;
      });
      Thread saving = new Thread(() -> engine.save(folder));
      saving.start();
      await(inside);
      DsException.State error = assertThrows(DsException.State.class, () -> engine.addGradients(new long[] {1}, gradient));
      await(inside);
      saving.join();
      assertTrue(error.getMessage().contains("another"), error.getMessage());
      Checkpoints.verify(folder, null);
    }
  }

  private static void await(CyclicBarrier barrier) {
    try {
      barrier.await(20, java.util.concurrent.TimeUnit.SECONDS);
    } catch (Exception e) {
      throw new IllegalStateException(e);
    }
  }
}
