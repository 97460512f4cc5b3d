//! What calls cost through the crate `ds`, and what the C function itself costs: call_cost [ROUNDS]
//!
//! Prints nanoseconds per call, the median of the rounds. Calls of another library cannot be optimised
//! away, so nothing guards against that.
use std::time::Instant;

use ds::{Engine, Model, Parameter, Tensor};

const CALLS: u32 = 20_000;

/// The median of nanoseconds per call.
fn measure(name: &str, rounds: usize, mut call: impl FnMut()) {
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let begin = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
        })
        .collect();
    times.sort_by(|a, b| a.partial_cmp(b).expect("times are numbers"));
    println!("{name:<44} {:8.1} ns", times[rounds / 2]);
}

fn main() -> ds::Result<()> {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .unwrap_or(21);
    let tensor = Tensor::from_vec(vec![1.5f32], &[1])?;
    let start = Tensor::from_vec(vec![1.0f32; 4], &[4])?;
    let model = Model::from_parameters(vec![Parameter::new("w")?.value(&start)])?;
    let config = r#"{"train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}}}"#;
    let mut engine = Engine::new(config, model)?;

    // SAFETY: takes nothing.
    measure("ds_abi_version, by ds::sys", rounds, || {
        unsafe { ds::sys::ds_abi_version() };
    });
    measure("Tensor::item", rounds, || drop(tensor.item()));
    measure("Tensor::as_slice", rounds, || {
        tensor.as_slice::<f32>().expect("it holds f32");
    });
    measure("Engine::info", rounds, || drop(engine.info()));
    measure("Tensor::from_vec and its end", rounds, || {
        drop(Tensor::from_vec(vec![1.0f32], &[1]))
    });
    measure("a refused call with its text", rounds, || {
        drop(start.item())
    });
    measure("add_gradients and step, four numbers", rounds, || {
        engine
            .add_gradients(std::slice::from_ref(&start))
            .expect("the gradient fits");
        engine.step().expect("there is a gradient");
    });
    Ok(())
}
