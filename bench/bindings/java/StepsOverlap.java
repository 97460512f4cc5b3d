import io.ds.Dataset;
import io.ds.Engine;
import io.ds.Model;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;

/**
 * Whether the steps of two engines on two threads overlap: StepsOverlap FILE [ROUNDS]
 *
 * <p>Each engine computes on one thread. In every round one thread makes 20 steps on the text FILE alone, then two threads make 20
 * steps each at once. Prints the ratio of the medians of both times, and that of the lowest ones, which other programs have
 * disturbed least: 1 where all overlaps (and each thread has a core), 2 where one waits for the other.
 */
public final class StepsOverlap {
  private static final int STEPS = 20;

  private StepsOverlap() {}

  private static Engine makeEngine(Path file) {
    String shape = """
        {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 128, "n_layer": 2, "n_head": 4}""";
    String config = """
        {"train_micro_batch_size_per_gpu": 8, "threads": 1, "optimizer": {"type": "AdamW"}}""";
    try (Model model = Model.create(shape, 1); Dataset data = Dataset.ofText(file, 64, null)) { // the engine keeps both alive
      Engine engine = Engine.create(config, model);
      engine.setDataset(data);
      return engine;
    }
  }

  private static void train(Engine engine) {
    for (int i = 0; i < STEPS; ++i) {
      engine.trainBatch();
    }
  }

  /** Seconds until a thread has trained each engine. */
  private static double run(List<Engine> engines) throws InterruptedException {
    long begin = System.nanoTime();
    List<Thread> threads = engines.stream().map(engine -> new Thread(() -> train(engine))).toList();
    threads.forEach(Thread::start);
    for (Thread thread : threads) {
      thread.join();
    }
    return (System.nanoTime() - begin) * 1e-9;
  }

  public static void main(String[] arguments) throws InterruptedException {
    if (arguments.length < 1) {
      System.err.println("usage: StepsOverlap FILE [ROUNDS]");
      System.exit(2);
    }
    Path file = Path.of(arguments[0]);
    int rounds = arguments.length > 1 ? Integer.parseInt(arguments[1]) : 11;
    try (Engine first = makeEngine(file); Engine second = makeEngine(file)) {
      run(List.of(first, second)); // warms up
      double[] one = new double[rounds];
      double[] two = new double[rounds];
      for (int i = 0; i < rounds; ++i) {
        one[i] = run(List.of(first));
        two[i] = run(List.of(first, second));
      }
      Arrays.sort(one);
      Arrays.sort(two);
      double alone = one[rounds / 2];
      double both = two[rounds / 2];
      System.out.printf("Java: one thread %.3f s, two threads %.3f s, ratio %.2f, of the lowest %.2f (%d rounds)%n",
          alone, both, both / alone, two[0] / one[0], rounds);
    }
  }
}
