//! Trains a small GPT on a text file, byte by byte, and saves it: train FILE STEPS FOLDER
use ds::{Dataset, Engine, Model};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (file, steps, folder) = match arguments.as_slice() {
        [_, file, steps, folder] => (file, steps.parse()?, folder),
        _ => return Err("usage: train FILE STEPS FOLDER".into()),
    };
    let shape = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64,
                    "n_embd": 64, "n_layer": 2, "n_head": 4}"#;
    let config = r#"{"train_micro_batch_size_per_gpu": 8,
                     "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}"#;
    let mut engine = Engine::new(config, Model::new(shape, 1)?)?;
    engine.set_dataset(Some(&Dataset::text(file, 64, None)?))?; // None: no tokenizer, so bytes
    for report in engine.steps(steps) {
        let report = report?;
        if report.step % 10 == 0 {
            println!("step {}  loss {:.4}", report.step, report.loss);
        }
    }
    engine.save(folder, None)?;
    Ok(())
}
