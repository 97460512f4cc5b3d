//! Makes and ends every kind of object, with callbacks, so many times: `cycles [COUNT]`, for
//! Valgrind, under which a test harness with threads of its own would be slow. What costs most there
//! comes less often; tests/threads.rs makes 10,000 engines without it.
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use ds::{
    Batch, Comm, DType, Dataset, Engine, GenerateOptions, Generator, MemoryStore, Model, Parameter,
    ReduceOp, Tensor, TextReply, Tokenizer,
};

const SHAPE: &str = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 8,
    "n_embd": 4, "n_layer": 1, "n_head": 1}"#;
const CONFIG: &str = r#"{"train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}"#;

/// Each time: tensors whose ends call back.
fn tensors(ended: &Arc<AtomicUsize>) -> ds::Result<()> {
    let start = Tensor::from_vec(vec![1.0f32; 6], &[2, 3])?;
    let mut memory = [1.0f32, 2.0];
    let (data, counter) = (memory.as_mut_ptr().cast(), Arc::clone(ended));
    let count = move || {
        counter.fetch_add(1, Ordering::Relaxed);
    };
    // SAFETY: the array outlives the tensor, and nobody else uses it meanwhile.
    let own = unsafe { Tensor::from_raw_parts(data, DType::F32, &[2], None, count) }?;
    assert_eq!(own.as_slice::<f32>()?[1], 2.0);
    assert!(start.item().is_err());
    Ok(())
}

/// Every 20th time: what costs more.
fn models(tokenizer: &Tokenizer, generator: &mut Generator<'_>) -> ds::Result<()> {
    let ids = tokenizer.encode("hello", false)?;
    assert_eq!(tokenizer.decode(&ids, false)?, "hello");
    let start = Tensor::from_vec(vec![1.0f32; 6], &[2, 3])?;
    let lent = Tensor::from_vec(vec![1.0f32; 2], &[2])?;
    let own = Model::from_parameters(vec![
        Parameter::new("w")?.value(&start).group("decay")?,
        Parameter::new("b")?.lend(lent).alias("tied")?,
    ])?;
    assert_eq!(own.parameter(1)?.name, "b");
    let pieces = Tensor::flatten(&[&start, &start])?.unflatten(&[&start, &start])?;
    assert_eq!(pieces.len(), 2);
    assert!(Model::new("{}", 1).is_err());
    let options = GenerateOptions::default();
    let some = generator.generate_with(&[1], &options, |_| ControlFlow::Break(()))?;
    assert_eq!(some.len(), 1);
    let prompts = [vec![1], vec![2, 3]];
    let end = [TextReply::EndText, TextReply::EndAll];
    let some = generator.generate_batch_with(&prompts, &options, 0, |text, _| end[text])?;
    assert_eq!(some.iter().map(Vec::len).sum::<usize>(), 2);
    Ok(())
}

/// Every 500th time: engines and groups.
fn engines(tokenizer: &Tokenizer, book: &std::path::Path) -> ds::Result<()> {
    let model = Model::new(SHAPE, 1)?;
    let mut generator = Generator::new(&model)?;
    let options = GenerateOptions {
        max_tokens: 3,
        ..Default::default()
    };
    let some = generator.generate_with(&[1], &options, |_| ControlFlow::Break(()))?;
    assert_eq!(some.len(), 1);
    assert_eq!(generator.tokens(&[1], &options)?.count(), 3);
    let ids = Tensor::from_vec(vec![1i32, 2], &[1, 2])?;
    assert_eq!(generator.logits(&Batch::new(&ids))?.elements()?, 512);
    drop(generator);
    let store = MemoryStore::new(Duration::from_secs(1));
    let comm = Comm::with_store(0, 1, None, &store)?;
    let mut engine = Engine::builder(CONFIG).comm(&comm).build(model)?;
    engine.set_dataset(Some(&Dataset::text(book, 4, Some(tokenizer))?))?;
    let mut heard = 0;
    engine.set_progress(move |_| {
        heard += 1;
        if heard == 2 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    assert!(engine.train_batch()?.applied);
    assert!(engine.train_batch().is_err());
    engine.clear_progress()?;
    engine.set_blob("blob", b"bytes")?;
    assert_eq!(engine.blob("blob")?, b"bytes");
    let mut sum = Tensor::from_vec(vec![1.0f32], &[1])?;
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    let own = Model::from_parameters(vec![Parameter::new("w")?.value(&sum)])?;
    let mut own = Engine::new(CONFIG, own)?;
    own.views()?.gradients[0].as_mut_slice::<f32>()?[0] = 1.0;
    assert!(own.step()?.applied);
    drop(own.scope(None)?.tensors()?);
    own.edit(None)?.close()?;
    Ok(())
}

fn main() -> ds::Result<()> {
    // Of arguments of `cargo test` none is a number.
    let count: usize = std::env::args()
        .filter_map(|argument| argument.parse().ok())
        .next()
        .unwrap_or(100);
    let book = std::env::temp_dir().join(format!("ds-cycles-{}.txt", std::process::id()));
    std::fs::write(&book, "What comes goes. ".repeat(10))
        .expect("the temporary folder is writable");
    let tokenizer = Tokenizer::bytes()?;
    let ended = Arc::new(AtomicUsize::new(0));
    let model = Model::new(SHAPE, 1)?;
    let mut generator = Generator::new(&model)?;
    for cycle in 0..count {
        tensors(&ended)?;
        if cycle % 20 == 0 {
            models(&tokenizer, &mut generator)?;
        }
        if cycle % 500 == 0 {
            engines(&tokenizer, &book)?;
        }
    }
    assert_eq!(ended.load(Ordering::Relaxed), count);
    std::fs::remove_file(&book).expect("it is ours");
    println!("{count} cycles");
    Ok(())
}
