import io.ds.Dataset;
import io.ds.Engine;
import io.ds.Model;
import io.ds.StepReport;
import java.nio.file.Path;

/** Trains a small GPT on a text file, byte by byte: Train FILE STEPS FOLDER */
public final class Train {
  private Train() {}

  public static void main(String[] arguments) {
    if (arguments.length != 3) {
      System.err.println("usage: Train FILE STEPS FOLDER");
      System.exit(2);
    }
    String shape = """
        {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}""";
    String config = """
        {"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}""";
    try (Dataset data = Dataset.ofText(Path.of(arguments[0]), 64, null); // null: no tokenizer, so bytes
        Model model = Model.create(shape, 1);
        Engine engine = Engine.create(config, model)) {
      engine.setDataset(data);
      for (int i = 0; i < Integer.parseInt(arguments[1]); ++i) {
        StepReport report = engine.trainBatch();
        if (report.step() % 10 == 0) {
          System.out.printf("step %d  loss %.4f%n", report.step(), report.loss());
        }
      }
      engine.save(Path.of(arguments[2]));
    }
  }
}
