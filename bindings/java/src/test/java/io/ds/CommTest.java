package io.ds;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;

class CommTest {
  /** Where threads of this process meet. */
  static final class MemoryStore implements KeyValueStore {
    private final Map<String, byte[]> values = new HashMap<>();

    @Override
    public synchronized void put(String key, byte[] value) {
      values.put(key, value);
      notifyAll();
    }

    @Override
    public synchronized byte[] get(String key) {
      long end = System.nanoTime() + Duration.ofSeconds(20).toNanos();
      try {
        while (!values.containsKey(key)) {
          long left = (end - System.nanoTime()) / 1_000_000;
          if (left <= 0) {
            return null;
          }
          wait(left);
        }
      } catch (InterruptedException e) {
        throw new IllegalStateException(e);
      }
      return values.get(key);
    }
  }

  interface Member<T> {
    T run(int rank, Comm comm) throws Exception;
  }

  /** Two members of a group in two threads. */
  static <T> List<T> two(Member<T> member) throws Exception {
    MemoryStore store = new MemoryStore();
    List<FutureTask<T>> tasks = new ArrayList<>();
    for (int i = 0; i < 2; ++i) {
      int rank = i;
      Callable<T> call = () -> {
        try (Comm comm = Comm.create(rank, 2, "{\"job_id\": \"java\"}", store)) {
          T result = member.run(rank, comm);
          comm.finish();
          return result;
        }
      };
      tasks.add(new FutureTask<>(call));
      new Thread(tasks.get(i)).start();
    }
    List<T> results = new ArrayList<>();
    for (FutureTask<T> task : tasks) {
      results.add(task.get(50, TimeUnit.SECONDS));
    }
    return results;
  }

  @Test
  void collectivesOfTwoThreads() throws Exception {
    List<CommInfo> infos = two((rank, comm) -> {
      try (Tensor value = Tensor.of(new float[] {rank + 1, 10}); Tensor other = Tensor.of(new float[] {rank})) {
        comm.allReduce(value, ReduceOp.SUM);
        assertArrayEquals(new float[] {3, 20}, value.floats());
        comm.allReduce(ReduceOp.MAX, value, other);
        assertArrayEquals(new float[] {1}, other.floats());
        try (Tensor both = Tensor.zeros(DType.FLOAT32, 2); Tensor mine = Tensor.of(new float[] {rank + 5})) {
          comm.allGather(both, mine);
          assertArrayEquals(new float[] {5, 6}, both.floats());
          comm.allGather(new Tensor[] {both}, new Tensor[] {mine});
          comm.reduceScatter(mine, both, ReduceOp.AVERAGE);
          assertArrayEquals(new float[] {5 + rank}, mine.floats());
          comm.reduceScatter(new Tensor[] {mine}, new Tensor[] {both}, ReduceOp.SUM);
          assertArrayEquals(new float[] {10 + 2 * rank}, mine.floats());
          comm.broadcast(mine, 1);
          assertArrayEquals(new float[] {12}, mine.floats());
          try (Tensor swapped = Tensor.zeros(DType.FLOAT32, 2); Tensor own = Tensor.of(new float[] {rank, rank + 10})) {
            comm.allToAll(swapped, own);
            assertArrayEquals(rank == 0 ? new float[] {0, 1} : new float[] {10, 11}, swapped.floats());
          }
        }
      }
      comm.barrier();
      assertTrue(Json.parseObject(comm.report()).containsKey("traffic"));
      return comm.info();
    });
    assertEquals(new CommInfo(0, 2, 0, 2, 0, 1), infos.get(0));
    assertEquals(1, infos.get(1).rank());
  }

  @Test
  void ranksShareTheExpertsOfAGenerator() throws Exception {
    String config = "{\"model_type\": \"mixtral\", \"vocab_size\": 61, \"hidden_size\": 16, \"intermediate_size\": 24, "
        + "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
        + "\"num_local_experts\": 4, \"max_position_embeddings\": 16}";
    two((rank, comm) -> {
      try (Model model = Model.create(config, 5); Generator whole = Generator.of(model, "{\"weights\": \"fp32\"}");
          Generator shared = Generator.shared(model, null, comm)) {
        assertTrue(shared.info().bytes() < whole.info().bytes());
        int[] prompt = {1, 2, 3};
        if (rank == 0) {
          assertArrayEquals(whole.generate(prompt, null), shared.generate(prompt, null));
        } else {
          shared.takePart();
        }
      }
      return null;
    });
  }

  @Test
  void messagesGoOnBesideTheProgram() throws Exception {
    two((rank, comm) -> {
      try (Tensor value = Tensor.of(new int[] {7 * (rank + 1)}); Tensor all = Tensor.zeros(DType.INT32, 3);
          Tensor shared = comm.sharedTensor(DType.INT32, 2)) {
        Collective message = rank == 0 ? new Collective(CollectiveKind.SEND).input(value).root(1).tag(4)
            : new Collective(CollectiveKind.RECV).output(value).root(0).tag(4);
        try (Work work = comm.start(message.label("number").timeout(Duration.ofSeconds(20)))) {
          work.await();
          assertTrue(work.isDone());
          assertArrayEquals(new int[] {7}, value.ints());
        }
        try (Tensor piece = rank == 0 ? Tensor.of(new int[] {1, 2}) : Tensor.of(new int[] {3});
            Work work = comm.start(new Collective(CollectiveKind.ALL_GATHER).output(all).input(piece).outputCounts(2, 1))) {
          assertEquals(2, work.await());
          assertArrayEquals(new int[] {1, 2, 3}, all.ints());
        }
        comm.allReduce(shared, ReduceOp.SUM);
      }
      try (Comm alone = comm.split(rank == 0 ? 3 : -1, 0)) {
        if (rank == 0) {
          assertEquals(1, alone.info().size());
        } else {
          assertNull(alone);
        }
      }
      comm.join();
      return null;
    });
  }

  @Test
  void twoThreadsTrainOneModelAtStageTwo() throws Exception {
    String config = """
        {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2},
         "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}""";
    List<float[]> ends = two((rank, comm) -> {
      try (Model model = Fixtures.model(); Dataset data = Fixtures.dataset(); Engine engine = Engine.create(config, null, model, comm)) {
        engine.setDataset(data);
        for (int i = 0; i < 3; ++i) {
          engine.trainBatch();
        }
        assertEquals(2, engine.info().zeroStage());
        try (Tensor weight = model.getParameter(0)) {
          return weight.floats();
        }
      }
    });
    assertArrayEquals(ends.get(0), ends.get(1));
  }

  @Test
  void whatAStoreThrowsComesOut() {
    IllegalStateException mine = new IllegalStateException("the store is down");
    KeyValueStore broken = new KeyValueStore() {
      @Override
      public void put(String key, byte[] value) {
        throw mine;
      }

      @Override
      public byte[] get(String key) {
        return null;
      }
    };
    assertSame(mine, assertThrows(IllegalStateException.class, () -> Comm.create(0, 2, null, broken)));
  }

  @Test
  void anAbortIsHeardElsewhere() throws Exception {
    two((rank, comm) -> {
      if (rank == 0) {
        comm.abort();
        return null;
      }
      DsException error = assertThrows(DsException.class, comm::barrier);
      assertTrue(error instanceof DsException.Aborted || error instanceof DsException.Comm, error.toString());
      throw new Expected();
    }, Expected.class);
  }

  private static final class Expected extends Exception {
    private static final long serialVersionUID = 1;
  }

  /** As two, for groups that end early. */
  private static void two(Member<Void> member, Class<? extends Exception> expected) throws Exception {
    try {
      two(member);
    } catch (java.util.concurrent.ExecutionException e) {
      assertTrue(expected.isInstance(e.getCause()) || e.getCause() instanceof DsException, String.valueOf(e.getCause()));
    }
  }

  @Test
  void aGroupOfOneNeedsNobody() {
    try (Comm comm = Comm.create(0, 1, null, null)) {
      assertEquals(1, comm.info().size());
      comm.finish();
    }
  }
}
