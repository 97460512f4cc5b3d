//! What several tests need: a small model, a text, a folder that goes away.
#![allow(dead_code)] // no test needs all of it
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ds::{Dataset, Engine, Model, Parameter, Tensor};

pub const SHAPE: &str = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32,
    "n_embd": 16, "n_layer": 2, "n_head": 2}"#;
pub const CONFIG: &str = r#"{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}, "gradient_clipping": 1.0}"#;
/// Plain gradient descent, whose updates are easily computed by hand.
pub const SGD: &str = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
    "optimizer": {"type": "SGD", "params": {"lr": 0.5}}}"#;

/// A folder of its own with a text, deleted at the end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ds-rust-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let line = "The quick brown fox jumps over the lazy dog while it rains in the valley. ";
        std::fs::write(folder.join("book.txt"), line.repeat(60)).unwrap();
        Scratch(folder)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
    /// A file of English text.
    pub fn book(&self) -> PathBuf {
        self.join("book.txt")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small model with an engine and data.
pub fn trainer(scratch: &Scratch, config: &str) -> Engine {
    let mut engine = Engine::new(config, Model::new(SHAPE, 7).unwrap()).unwrap();
    let data = Dataset::text(scratch.book(), 16, None).unwrap();
    engine.set_dataset(Some(&data)).unwrap();
    engine
}

/// All weights of a model, by their bits.
pub fn weights(model: &Model) -> Vec<Vec<u32>> {
    let count = model.info().unwrap().parameters;
    let bits = |index| {
        let values: Vec<f32> = model.get_parameter(index).unwrap().to_vec().unwrap();
        values.into_iter().map(f32::to_bits).collect()
    };
    (0..count).map(bits).collect()
}

/// A model of two own parameters: `a` of [2, 3] with ones, `b` of [2] with zeros.
pub fn own_model() -> Model {
    let ones = Tensor::from_vec(vec![1.0f32; 6], &[2, 3]).unwrap();
    Model::from_parameters(vec![
        Parameter::new("a").unwrap().value(&ones),
        Parameter::new("b").unwrap().shape(&[2]),
    ])
    .unwrap()
}
