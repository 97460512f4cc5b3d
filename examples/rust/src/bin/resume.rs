//! Goes on with what `train` saved, then writes text: resume FOLDER FILE STEPS
use std::io::Write;

use ds::{Dataset, Engine, GenerateOptions, Generator, Model, Tokenizer};

fn resume(folder: &str, file: &str, steps: usize) -> ds::Result<Engine> {
    let config = r#"{"train_micro_batch_size_per_gpu": 8,
                     "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}"#;
    let mut engine = Engine::new(config, Model::open(folder)?)?;
    engine.set_dataset(Some(&Dataset::text(file, 64, None)?))?;
    engine.load(folder, None)?; // None: the newest; moments, schedule, data and random state follow
    println!("goes on after step {}", engine.info()?.step);
    for report in engine.steps(steps) {
        report?;
    }
    engine.save(folder, None)?;
    Ok(engine)
}

fn write_text(model: &Model) -> ds::Result<()> {
    let tokenizer = Tokenizer::bytes()?;
    let mut generator = Generator::new(model)?;
    let options = GenerateOptions {
        max_tokens: 40,
        temperature: 0.8,
        seed: 1,
        ..Default::default()
    };
    for token in generator.tokens(&tokenizer.encode("The ", false)?, &options)? {
        print!("{}", tokenizer.decode(&[token?], true)?); // as they come
        let _ = std::io::stdout().flush();
    }
    println!();
    let prompts = [
        tokenizer.encode("You may", false)?,
        tokenizer.encode("The", false)?,
    ];
    for text in generator.generate_batch(&prompts, &options, 0)? {
        println!("together: {:?}", tokenizer.decode(&text, true)?);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let engine = match arguments.as_slice() {
        [_, folder, file, steps] => resume(folder, file, steps.parse()?)?,
        _ => return Err("usage: resume FOLDER FILE STEPS".into()),
    };
    write_text(engine.model())?;
    Ok(())
}
