import io.ds.DType;
import io.ds.Engine;
import io.ds.Model;
import io.ds.Parameter;
import io.ds.StepReport;
import io.ds.Tensor;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.util.List;

/**
 * A program with a model and gradients of its own lets ds be its optimizer: a two-layer network learns sin(3x) on [-1, 1], in
 * direct buffers that both sides see. OwnGradients STEPS
 */
public final class OwnGradients {
  private static final int WIDTH = 32;
  private static final int POINTS = 64;

  /** y = out.bias + sum over j of out.weight[j] * tanh(hidden.weight[j] * x + hidden.bias[j]), or its gradients. */
  private static final class Network implements AutoCloseable {
    final FloatBuffer[] numbers = new FloatBuffer[4];
    final Tensor[] tensors = new Tensor[4];

    Network() {
      for (int i = 0; i < 4; ++i) {
        int size = i == 3 ? 1 : WIDTH;
        ByteBuffer memory = ByteBuffer.allocateDirect(4 * size).order(ByteOrder.nativeOrder());
        numbers[i] = memory.asFloatBuffer();
        tensors[i] = Tensor.wrap(memory, DType.FLOAT32, size);
      }
    }

    @Override
    public void close() {
      for (Tensor tensor : tensors) {
        tensor.close();
      }
    }
  }

  private OwnGradients() {}

  private static void add(FloatBuffer to, int at, double value) {
    to.put(at, (float) (to.get(at) + value));
  }

  /** Mean squared error, whose gradient lands in `slopes`. */
  private static double lossAndGradient(Network network, Network slopes) {
    for (FloatBuffer slope : slopes.numbers) {
      for (int j = 0; j < slope.capacity(); ++j) {
        slope.put(j, 0);
      }
    }
    double loss = 0;
    double[] hidden = new double[WIDTH];
    for (int i = 0; i < POINTS; ++i) {
      double x = -1.0 + 2.0 * i / (POINTS - 1);
      double y = network.numbers[3].get(0);
      for (int j = 0; j < WIDTH; ++j) {
        hidden[j] = Math.tanh(network.numbers[0].get(j) * x + network.numbers[1].get(j));
        y += network.numbers[2].get(j) * hidden[j];
      }
      double error = y - Math.sin(3 * x);
      double dy = 2 * error / POINTS;
      loss += error * error / POINTS;
      add(slopes.numbers[3], 0, dy);
      for (int j = 0; j < WIDTH; ++j) {
        double da = dy * network.numbers[2].get(j) * (1 - hidden[j] * hidden[j]);
        add(slopes.numbers[2], j, dy * hidden[j]);
        add(slopes.numbers[0], j, da * x);
        add(slopes.numbers[1], j, da);
      }
    }
    return loss;
  }

  public static void main(String[] arguments) {
    if (arguments.length != 1) {
      System.err.println("usage: OwnGradients STEPS");
      System.exit(2);
    }
    String config = """
        {"train_micro_batch_size_per_gpu": 64, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}""";
    try (Network network = new Network(); Network slopes = new Network()) {
      for (int j = 0; j < WIDTH; ++j) { // a fixed start: any program's own initialisation
        network.numbers[0].put(j, (float) (3 * Math.sin(7 * j)));
        network.numbers[1].put(j, (float) Math.cos(5 * j));
        network.numbers[2].put(j, (float) (0.1 * Math.sin(3 * j)));
      }
      List<Parameter> parameters = List.of(
          Parameter.of("hidden.weight", network.tensors[0]).lend(), // new weights arrive in `network`
          Parameter.of("hidden.bias", network.tensors[1]).lend(),
          Parameter.of("out.weight", network.tensors[2]).lend(),
          Parameter.of("out.bias", network.tensors[3]).lend());
      try (Model model = Model.ofParameters(parameters); Engine engine = Engine.create(config, model)) {
        for (int i = 0; i < Integer.parseInt(arguments[0]); ++i) {
          double loss = lossAndGradient(network, slopes);
          engine.addGradients(slopes.tensors);
          engine.setLoss(loss);
          StepReport report = engine.step();
          if (report.step() % 100 == 0) {
            System.out.printf("step %d  loss %.5f  gradient norm %.4f%n", report.step(), report.loss(), report.gradNorm());
          }
        }
      }
    }
  }
}
