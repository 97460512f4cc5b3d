//! Whether the steps of two engines on two threads overlap: steps_overlap FILE [ROUNDS]
//!
//! Each engine computes on one thread. In every round one thread makes 20 steps on the text FILE alone, then two threads
//! make 20 steps each at once. Prints the ratio of the medians of both times, and that of the lowest ones, which other
//! programs have disturbed least: 1 where all overlaps (and each thread has a core), 2 where one waits for the other.
use std::thread;
use std::time::Instant;

use ds::{Dataset, Engine, Model};

const STEPS: u64 = 20;

fn make_engine(file: &str) -> ds::Result<Engine> {
    let shape = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64,
        "n_embd": 128, "n_layer": 2, "n_head": 4}"#;
    let config = r#"{"train_micro_batch_size_per_gpu": 8, "threads": 1,
        "optimizer": {"type": "AdamW"}}"#;
    let mut engine = Engine::new(config, Model::new(shape, 1)?)?;
    engine.set_dataset(Some(&Dataset::text(file, 64, None)?))?;
    Ok(engine)
}

/// Seconds until a thread has trained each engine.
fn run(engines: &mut [Engine]) -> f64 {
    let begin = Instant::now();
    thread::scope(|scope| {
        for engine in engines {
            scope.spawn(move || {
                for _ in 0..STEPS {
                    engine.train_batch().expect("a step");
                }
            });
        }
    });
    begin.elapsed().as_secs_f64()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let file = arguments
        .get(1)
        .ok_or("usage: steps_overlap FILE [ROUNDS]")?;
    let rounds: usize = arguments.get(2).map_or(Ok(11), |text| text.parse())?;
    let mut engines = [make_engine(file)?, make_engine(file)?];
    run(&mut engines); // warms up
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        one.push(run(&mut engines[..1]));
        two.push(run(&mut engines));
    }
    for times in [&mut one, &mut two] {
        times.sort_by(|a, b| a.partial_cmp(b).expect("times are numbers"));
    }
    let (alone, both) = (one[rounds / 2], two[rounds / 2]);
    println!(
        "Rust: one thread {alone:.3} s, two threads {both:.3} s, ratio {:.2}, of the lowest {:.2} ({rounds} rounds)",
        both / alone,
        two[0] / one[0]
    );
    Ok(())
}
