import io.ds.Dataset;
import io.ds.Engine;
import io.ds.Json;
import io.ds.Model;
import io.ds.Parameter;
import io.ds.Tensor;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.FloatBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** The run that ends with the same bits in every language (tests/same_run): SameRun run.json TEXT built_in|external OUTPUT */
public final class SameRun {
  private SameRun() {}

  @SuppressWarnings("unchecked")
  private static Map<String, Object> object(Map<String, Object> parent, String key) {
    return (Map<String, Object>) parent.get(key);
  }

  private static long number(Map<String, Object> parent, String key) {
    return ((Number) parent.get(key)).longValue();
  }

  public static void main(String[] arguments) throws IOException {
    if (arguments.length != 4) {
      System.err.println("usage: SameRun run.json TEXT built_in|external OUTPUT");
      System.exit(2);
    }
    Map<String, Object> run = Json.parseObject(Files.readString(Path.of(arguments[0])));
    boolean builtIn = arguments[2].equals("built_in");
    Map<String, Object> part = object(run, arguments[2]);
    try (Model model = builtIn ? Model.create(Json.write(part.get("model")), number(part, "seed")) : ownModel(part);
        Engine engine = Engine.create(Json.write(run.get("engine")), model)) {
      if (builtIn) {
        trainBuiltIn(engine, part, arguments[1]);
      } else {
        trainExternal(engine, model, number(part, "steps"));
      }
      writeParameters(model, Path.of(arguments[3]));
    }
  }

  private static void trainBuiltIn(Engine engine, Map<String, Object> part, String text) {
    Map<String, Object> spec = object(part, "dataset");
    spec.put("path", text);
    try (Dataset data = Dataset.open(Json.write(spec), null)) {
      engine.setDataset(data);
      for (long step = 0; step < number(part, "steps"); ++step) {
        engine.trainBatch();
      }
    }
  }

  private static Model ownModel(Map<String, Object> part) {
    List<Parameter> parameters = new ArrayList<>();
    for (Object one : (List<?>) part.get("parameters")) {
      Map<?, ?> described = (Map<?, ?>) one;
      long[] shape = ((List<?>) described.get("shape")).stream().mapToLong(size -> (Long) size).toArray();
      parameters.add(Parameter.zeros((String) described.get("name"), shape));
    }
    return Model.ofParameters(parameters);
  }

  private static void trainExternal(Engine engine, Model model, long steps) {
    int count = (int) model.info().parameters();
    Tensor[] views = new Tensor[count];
    Tensor[] gradients = new Tensor[count];
    ByteBuffer[] slopes = new ByteBuffer[count];
    for (int p = 0; p < count; ++p) {
      views[p] = model.viewParameter(p);
      slopes[p] = ByteBuffer.allocateDirect((int) views[p].info().bytes()).order(ByteOrder.nativeOrder());
      long[] shape = views[p].shape().stream().mapToLong(Long::longValue).toArray();
      gradients[p] = Tensor.wrap(slopes[p], io.ds.DType.FLOAT32, shape);
    }
    long accumulation = engine.info().accumulationSteps();
    for (long step = 0; step < steps; ++step) {
      for (long micro = 0; micro < accumulation; ++micro) {
        for (int p = 0; p < count; ++p) {
          FloatBuffer weights = views[p].buffer().asFloatBuffer();
          FloatBuffer slope = slopes[p].asFloatBuffer();
          for (int j = 0; j < weights.capacity(); ++j) {
            float target = ((j * 7 + step * 3 + p * 5) % 11) / 8.0f;
            slope.put(j, (weights.get(j) - target) / 2.0f);
          }
        }
        engine.addGradients(gradients);
        engine.step();
      }
    }
    for (int p = 0; p < count; ++p) {
      gradients[p].close();
      views[p].close();
    }
  }

  private static void writeParameters(Model model, Path output) throws IOException {
    try (OutputStream out = Files.newOutputStream(output)) {
      for (long p = 0; p < model.info().parameters(); ++p) {
        try (Tensor value = model.getParameter(p)) {
          float[] numbers = value.floats();
          ByteBuffer packed = ByteBuffer.allocate(4 * numbers.length).order(ByteOrder.LITTLE_ENDIAN);
          packed.asFloatBuffer().put(numbers);
          out.write(packed.array());
        }
      }
    }
  }
}
