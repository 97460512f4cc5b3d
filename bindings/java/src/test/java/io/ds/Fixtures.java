package io.ds;

import java.nio.file.Path;
import java.util.function.BooleanSupplier;

/** Small models, data and engines for the tests. */
final class Fixtures {
  /** The checkout. */
  static final Path ROOT = Path.of(System.getProperty("ds.test.root"));
  static final Path TEXT = ROOT.resolve("LICENSE");

  static final String MODEL = """
      {"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2,
       "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}""";
  static final String CONFIG = """
      {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
       "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}""";

  private Fixtures() {}

  static Model model() {
    return Model.create(MODEL, 1);
  }

  static Dataset dataset() {
    return Dataset.ofText(TEXT, 16, null);
  }

  /** A model of the caller's parameters: a matrix [2, 3] and a vector [4], zeros. */
  static Model ownModel() {
    return Model.ofParameters(java.util.List.of(Parameter.zeros("matrix", 2, 3), Parameter.zeros("vector", 4)));
  }

  /** Waits for what the garbage collector and the cleaner do in their own time. */
  static boolean collectedWithin(int seconds, BooleanSupplier done) throws InterruptedException {
    for (int i = 0; i < 50 * seconds; ++i) {
      System.gc();
      if (done.getAsBoolean()) {
        return true;
      }
      Thread.sleep(20);
    }
    return false;
  }
}
