//! Fine-tunes a Hugging Face folder with low-rank adapters: lora BASE FILE STEPS ADAPTER
//!
//! BASE holds config.json and safetensors. Without one, `lora --make-base BASE` writes a small fresh
//! model there, whose tokens are bytes.
use ds::{DType, Dataset, Engine, GenerateOptions, Generator, Model, Tokenizer};

fn make_base(folder: &str) -> ds::Result<()> {
    let shape = r#"{"model_type": "llama", "vocab_size": 256, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 128}"#;
    Model::new(shape, 1)?.export(folder, DType::F32, None)
}

/// The folder's own tokenizer; a folder without one has bytes.
fn tokenizer_of(folder: &str) -> ds::Result<Tokenizer> {
    match Tokenizer::open(folder) {
        Err(error) if error.status() == ds::Status::NotFound => Tokenizer::bytes(),
        other => other,
    }
}

fn tune(base: &str, file: &str, steps: usize, adapter: &str) -> ds::Result<()> {
    let tokenizer = tokenizer_of(base)?;
    let mut model = Model::open(base)?;
    model.add_lora(r#"{"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}"#)?;
    let info = model.info()?;
    println!(
        "{} of {} numbers train",
        info.trainable_elements, info.elements
    );
    let config = r#"{"train_micro_batch_size_per_gpu": 4,
                     "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}"#;
    let mut engine = Engine::new(config, model)?;
    engine.set_dataset(Some(&Dataset::text(file, 64, Some(&tokenizer))?))?;
    for report in engine.steps(steps) {
        let report = report?;
        if report.step % 10 == 0 {
            println!("step {}  loss {:.4}", report.step, report.loss);
        }
    }
    let mut model = engine.into_model();
    model.save_adapter(adapter, DType::F32)?; // what PEFT reads
    model.merge_lora()?; // one model again
    let prompt = tokenizer.encode("The ", false)?;
    let options = GenerateOptions {
        max_tokens: 24,
        ..Default::default()
    };
    let tokens = Generator::new(&model)?.generate(&prompt, &options)?;
    println!("The {}", tokenizer.decode(&tokens, true)?);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments
        .iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .as_slice()
    {
        ["--make-base", folder] => make_base(folder)?,
        [base, file, steps, adapter] => tune(base, file, steps.parse()?, adapter)?,
        _ => return Err("usage: lora BASE FILE STEPS ADAPTER, or lora --make-base BASE".into()),
    }
    Ok(())
}
