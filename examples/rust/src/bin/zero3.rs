//! ZeRO stage 3 with as many processes as a launcher starts: zero3 FILE STEPS FOLDER
//!
//! `mpirun -n 3 zero3 FILE 20 FOLDER` trains until step 20, `mpirun -n 2 zero3 FILE 30 FOLDER` goes on
//! until step 30, whatever the number of processes was that saved.
use ds::{Comm, Dataset, Engine, Model};

const SHAPE: &str = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64,
    "n_layer": 2, "n_head": 4}"#;
// A step has 12 samples however many processes share them.
const CONFIG: &str = r#"{"train_batch_size": 12, "zero_optimization": {"stage": 3},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}"#;

fn train(file: &str, steps: usize, folder: &str) -> ds::Result<()> {
    let comm = Comm::from_environment(None)?;
    let group = comm.info()?;
    let mut engine = Engine::builder(CONFIG)
        .comm(&comm)
        .build(Model::new(SHAPE, 1)?)?;
    engine.set_dataset(Some(&Dataset::text(file, 64, None)?))?;
    engine.load_with(folder, None, Some(r#"{"may_be_missing": true}"#))?;
    let done = engine.info()?.step as usize;
    if group.rank == 0 {
        println!("after step {done}: {} processes, ZeRO stage 3", group.size);
    }
    for report in engine.steps(steps.saturating_sub(done)) {
        let report = report?;
        if group.rank == 0 && report.step % 10 == 0 {
            println!("step {}  loss {:.4}", report.step, report.loss);
        }
    }
    engine.save(folder, None)?;
    drop(engine);
    comm.finalize() // waits for the others
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.as_slice() {
        [_, file, steps, folder] => train(file, steps.parse()?, folder)?,
        _ => return Err("usage: zero3 FILE STEPS FOLDER".into()),
    }
    Ok(())
}
