package io.ds;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class CallbackTest {
  @AfterEach
  void defaultLog() {
    Ds.setLog(null);
    Ds.setLogLevel(LogLevel.WARNING);
  }

  @Test
  void progressIsHeardOnTheCallingThread(@TempDir Path folder) {
    List<String> heard = new ArrayList<>();
    Thread caller = Thread.currentThread();
    try (Model model = Fixtures.model(); Dataset data = Fixtures.dataset(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      engine.setDataset(data);
      engine.setProgress((call, done, total) -> {
        assertSame(caller, Thread.currentThread());
        assertTrue(done <= total);
        heard.add(call);
        return true;
      });
      engine.trainBatch();
      assertEquals(List.of("train_batch", "train_batch"), heard);
      engine.evaluate(data, 3);
      engine.save(folder);
      engine.load(folder);
      assertTrue(heard.containsAll(List.of("evaluate", "save", "load")), heard.toString());
      int before = heard.size();
      engine.setProgress(null);
      engine.trainBatch();
      assertEquals(before, heard.size());
    }
  }

  @Test
  void whatAListenerThrowsComesOutOfTheCall(@TempDir Path folder) {
    try (Model model = Fixtures.model(); Dataset data = Fixtures.dataset(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      engine.setDataset(data);
      Error mine = new Error("mine");
      engine.setProgress((call, done, total) -> {
        if (done == 1) {
          throw mine;
        }
        return true;
      });
      assertSame(mine, assertThrows(Error.class, engine::trainBatch));
      engine.setProgress((call, done, total) -> false);
      DsException.Stopped stopped = assertThrows(DsException.Stopped.class, () -> engine.save(folder, "never"));
      assertEquals("DS_ERR_CALLBACK", stopped.statusName());
      assertFalse(Files.exists(folder.resolve("never").resolve("manifest.json")));
      engine.setProgress(null);
      assertTrue(engine.trainBatch().applied(), "the engine goes on with the open step");
      assertEquals(1, engine.info().step());
    }
  }

  @Test
  void tokensAreHeardAndMayEndTheText() {
    try (Model model = Fixtures.model(); Generator generator = Generator.of(model)) {
      GenerateOptions options = new GenerateOptions().maxTokens(9);
      List<Integer> heard = new ArrayList<>();
      int[] all = generator.generate(new int[] {1}, options, heard::add);
      assertArrayEquals(all, heard.stream().mapToInt(Integer::intValue).toArray());
      assertEquals(9, all.length);
      heard.clear();
      int[] four = generator.generate(new int[] {1}, options, token -> heard.add(token) && heard.size() < 4);
      assertArrayEquals(java.util.Arrays.copyOf(all, 4), four);
      IllegalStateException mine = new IllegalStateException("mine");
      assertSame(mine, assertThrows(IllegalStateException.class, () -> generator.generate(new int[] {1}, options, token -> {
        throw mine;
      })));
      assertArrayEquals(all, generator.generate(new int[] {1}, options), "and the generator goes on");
    }
  }

  @Test
  void tokensOfSeveralTextsAreHeardAndMayEndOne() {
    int[][] prompts = {{1}, {2, 3, 4}, {5, 6}};
    try (Model model = Fixtures.model(); Generator generator = Generator.of(model)) {
      GenerateOptions options = new GenerateOptions().maxTokens(9).temperature(1).seed(4);
      int[][] all = generator.generateBatch(prompts, options);
      List<List<Integer>> heard = List.of(new ArrayList<>(), new ArrayList<>(), new ArrayList<>());
      Thread caller = Thread.currentThread();
      int[][] some = generator.generateBatch(prompts, options, 2, (text, token) -> {
        assertSame(caller, Thread.currentThread());
        heard.get(text).add(token);
        return text != 1 || heard.get(text).size() < 4;
      });
      for (int i = 0; i < prompts.length; ++i) {
        assertArrayEquals(some[i], heard.get(i).stream().mapToInt(Integer::intValue).toArray());
        assertArrayEquals(i == 1 ? java.util.Arrays.copyOf(all[i], 4) : all[i], some[i]);
      }
      IllegalStateException mine = new IllegalStateException("mine");
      assertSame(mine, assertThrows(IllegalStateException.class, () -> generator.generateBatch(prompts, options, 0, (text, token) -> {
        if (text == 1) {
          throw mine;
        }
        return true;
      })));
      assertArrayEquals(all, generator.generateBatch(prompts, options), "and the generator goes on");
    }
  }

  @Test
  void theLogReachesItsSinkFromAnyThread() throws Exception {
    List<String> heard = new CopyOnWriteArrayList<>();
    AtomicReference<Throwable> handled = new AtomicReference<>();
    Ds.setLogLevel(LogLevel.DEBUG);
    Ds.setLog((level, component, text) -> {
      heard.add(level + " " + component + " " + text);
      throw new IllegalArgumentException("of the sink");
    });
    Thread thread = new Thread(() -> {
      try (Model model = Fixtures.model(); Dataset data = Fixtures.dataset();
          Engine engine = Engine.create("{\"wall_clock_breakdown\": true, \"steps_per_print\": 1, " + Fixtures.CONFIG.substring(1), model)) {
        engine.setDataset(data);
        engine.trainBatch();
      }
    });
    thread.setUncaughtExceptionHandler((t, e) -> handled.set(e));
    thread.start();
    thread.join();
    assertFalse(heard.isEmpty());
    assertEquals("of the sink", String.valueOf(handled.get() == null ? null : handled.get().getMessage()));
    Ds.setLog(null);
    int before = heard.size();
    Ds.setLogLevel(LogLevel.OFF);
    try (Model model = Fixtures.model(); Engine engine = Engine.create(Fixtures.CONFIG, model)) {
      assertEquals(before, heard.size());
    }
  }

  @Test
  void anotherThreadInterruptsTraining() throws Exception {
    try (Model model = Fixtures.model(); Dataset data = Fixtures.dataset(); Engine engine = Engine.create("""
        {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1000000,
         "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}""", model)) {
      engine.setDataset(data);
      CountDownLatch running = new CountDownLatch(1);
      engine.setProgress((call, done, total) -> {
        running.countDown();
        return true;
      });
      FutureTask<StepReport> training = new FutureTask<>(engine::trainBatch);
      new Thread(training).start();
      assertTrue(running.await(30, TimeUnit.SECONDS));
      DsException.State busy = assertThrows(DsException.State.class, engine::step);
      assertTrue(busy.getMessage().contains("engine"), busy.getMessage());
      engine.interrupt();
      ExecutionException ended = assertThrows(ExecutionException.class, () -> training.get(30, TimeUnit.SECONDS));
      assertTrue(ended.getCause() instanceof DsException.Aborted, String.valueOf(ended.getCause()));
      engine.interrupt(); // nothing runs: nothing happens
    }
  }

  @Test
  void anotherThreadInterruptsAText() throws Exception {
    try (Model model = Fixtures.model(); Generator generator = Generator.of(model)) {
      CountDownLatch running = new CountDownLatch(1);
      FutureTask<int[]> writing = new FutureTask<>(() -> generator.generate(new int[] {1}, new GenerateOptions().maxTokens(1_000_000), token -> {
        running.countDown();
        return true;
      }));
      Ds.setLogLevel(LogLevel.OFF); // that the text is longer than the model's positions
      new Thread(writing).start();
      assertTrue(running.await(30, TimeUnit.SECONDS));
      generator.interrupt();
      ExecutionException ended = assertThrows(ExecutionException.class, () -> writing.get(30, TimeUnit.SECONDS));
      assertTrue(ended.getCause() instanceof DsException.Aborted, String.valueOf(ended.getCause()));
      assertThrows(DsException.Aborted.class, () -> generator.generateBatch(new int[][] {{1}, {2}}, null, 0, (text, token) -> {
        generator.interrupt();
        return true;
      }));
    }
  }
}
