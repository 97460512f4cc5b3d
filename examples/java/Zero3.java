import io.ds.Comm;
import io.ds.Dataset;
import io.ds.Engine;
import io.ds.Model;
import io.ds.StepReport;
import java.nio.file.Path;

/**
 * ZeRO stage 3 with as many processes as a launcher starts: Zero3 FILE STEPS FOLDER
 *
 * <p>{@code mpirun -n 3 java Zero3 FILE 20 FOLDER} trains until step 20, {@code mpirun -n 2 java Zero3 FILE 30
 * FOLDER} goes on until step 30, whatever the number of processes was that saved.
 */
public final class Zero3 {
  private Zero3() {}

  public static void main(String[] arguments) {
    if (arguments.length != 3) {
      System.err.println("usage: Zero3 FILE STEPS FOLDER");
      System.exit(2);
    }
    Path folder = Path.of(arguments[2]);
    String shape = """
        {"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4}""";
    // A step has 12 samples however many processes share them.
    String config = """
        {"train_batch_size": 12, "zero_optimization": {"stage": 3},
         "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}""";
    try (Comm comm = Comm.ofEnvironment(null)) {
      try (Dataset data = Dataset.ofText(Path.of(arguments[0]), 64, null);
          Model model = Model.create(shape, 1);
          Engine engine = Engine.create(config, null, model, comm)) {
        engine.setDataset(data);
        engine.load(folder, null, "{\"may_be_missing\": true}");
        long done = engine.info().step();
        boolean first = comm.info().rank() == 0;
        if (first) {
          System.out.printf("after step %d: %d processes, ZeRO stage 3%n", done, comm.info().size());
        }
        for (long step = done; step < Long.parseLong(arguments[1]); ++step) {
          StepReport report = engine.trainBatch();
          if (first && report.step() % 10 == 0) {
            System.out.printf("step %d  loss %.4f%n", report.step(), report.loss());
          }
        }
        engine.save(folder);
      }
      comm.finish(); // waits for the others
    }
  }
}
