import io.ds.DType;
import io.ds.Ds;
import io.ds.Engine;
import io.ds.Model;
import io.ds.Optimizer;
import io.ds.Parameter;
import io.ds.Tensor;
import java.util.List;

/**
 * What a call from Java costs, in microseconds: the best of several rounds after warming up. The library's own part of
 * these calls is below 0.2 microseconds. CallCost
 */
public final class CallCost {
  private static final int CALLS = 200_000;
  private static long sink;

  private CallCost() {}

  private static void measure(String what, Runnable call) {
    double best = Double.MAX_VALUE;
    for (int round = 0; round < 12; ++round) {
      long begin = System.nanoTime();
      for (int i = 0; i < CALLS; ++i) {
        call.run();
      }
      best = Math.min(best, (System.nanoTime() - begin) * 1e-3 / CALLS);
    }
    System.out.printf("%-46s %.3f microseconds%n", what, best);
  }

  public static void main(String[] arguments) {
    String config = """
        {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "SGD", "params": {"lr": 1}}}""";
    try (Model model = Model.ofParameters(List.of(Parameter.zeros("a", 4))); Engine engine = Engine.create(config, model);
        Optimizer optimizer = engine.optimizer(); Tensor one = Tensor.zeros(DType.FLOAT32)) {
      measure("Ds.abiVersion(): no handle, no error", () -> sink += Ds.abiVersion());
      measure("Engine.interrupt(): a handle", engine::interrupt);
      measure("Engine.setLoss(): a handle and a number", () -> engine.setLoss(1));
      measure("Tensor.item(): a number comes back", () -> sink += (long) one.item());
      measure("Optimizer.rate(): the same", () -> sink += (long) optimizer.rate(0));
      measure("Engine.info(): a record of 9 members", () -> sink += engine.info().step());
      measure("Model.parameterName(): a text", () -> sink += model.parameterName(0).length());
      measure("Tensor.zeros() and close(): an object", () -> Tensor.zeros(DType.FLOAT32, 1).close());
    }
  }
}
