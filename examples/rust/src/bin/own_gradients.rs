//! A program with a model and gradients of its own lets ds be its optimizer: a two-layer network
//! learns sin(3x) on [-1, 1], on the engine's own memory. own_gradients STEPS [FOLDER]
use ds::{Engine, Model, Parameter, Tensor, Views};

const WIDTH: usize = 32;
const POINTS: usize = 64;

/// y = b + sum_j v[j] tanh(w[j] x + c[j]): adds the gradient of the mean squared error, gives the error.
fn add_gradient(views: &mut Views<'_>) -> ds::Result<f64> {
    let weights = |i: usize| views.parameters[i].as_slice::<f32>();
    let (w, c, v, b) = (weights(0)?, weights(1)?, weights(2)?, weights(3)?[0]);
    let mut slopes = Vec::new();
    for gradient in &mut views.gradients {
        slopes.push(gradient.as_mut_slice::<f32>()?);
    }
    let mut loss = 0.0;
    for point in 0..POINTS {
        let x = -1.0 + 2.0 * point as f32 / (POINTS - 1) as f32;
        let hidden: Vec<f32> = w.iter().zip(c).map(|(w, c)| (w * x + c).tanh()).collect();
        let y = b + v.iter().zip(&hidden).map(|(v, h)| v * h).sum::<f32>();
        let error = y - (3.0 * x).sin();
        loss += f64::from(error * error) / POINTS as f64;
        let dy = 2.0 * error / POINTS as f32;
        slopes[3][0] += dy;
        for j in 0..WIDTH {
            let da = dy * v[j] * (1.0 - hidden[j] * hidden[j]);
            slopes[0][j] += da * x;
            slopes[1][j] += da;
            slopes[2][j] += dy * hidden[j];
        }
    }
    Ok(loss)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let steps: u64 = arguments
        .get(1)
        .ok_or("usage: own_gradients STEPS [FOLDER]")?
        .parse()?;
    // A fixed start: any program's own initialisation.
    let start = |scale: f32, f: fn(f32) -> f32, step: f32| {
        let values = (0..WIDTH).map(|j| scale * f(step * j as f32)).collect();
        Tensor::from_vec(values, &[WIDTH])
    };
    let (w, c, v) = (
        start(3.0, f32::sin, 7.0)?,
        start(1.0, f32::cos, 5.0)?,
        start(0.1, f32::sin, 3.0)?,
    );
    let model = Model::from_parameters(vec![
        Parameter::new("hidden.weight")?.value(&w),
        Parameter::new("hidden.bias")?.value(&c),
        Parameter::new("out.weight")?.value(&v),
        Parameter::new("out.bias")?.shape(&[1]),
    ])?;
    let config = r#"{"train_micro_batch_size_per_gpu": 64,
                     "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}"#;
    let mut engine = Engine::new(config, model)?;
    for _ in 0..steps {
        let loss = add_gradient(&mut engine.views()?)?; // in place, without a copy
        engine.set_loss(loss)?;
        let report = engine.step()?;
        if report.step % 100 == 0 {
            println!("step {}  loss {:.5}", report.step, report.loss);
        }
    }
    if let Some(folder) = arguments.get(2) {
        engine.save(folder, None)?;
    }
    Ok(())
}
