//! The same run in every language (../README.md), through the crate `ds`:
//! same_run run.json TEXT built_in|external OUTPUT
use std::error::Error;

use ds::json::Value;
use ds::{Dataset, Engine, Model, Parameter, Tensor};

/// A member that must be there.
fn count(value: &Value, key: &str) -> Result<i64, String> {
    value[key]
        .as_i64()
        .ok_or_else(|| format!("run.json has no number \"{key}\""))
}

/// Trains the model of the run on a text.
fn built_in(run: &Value, text: &str) -> Result<Engine, Box<dyn Error>> {
    let part = &run["built_in"];
    let model = Model::new(&part["model"].to_string(), count(part, "seed")?)?;
    let mut spec = part["dataset"].clone();
    if let Value::Object(members) = &mut spec {
        members.retain(|(key, _)| key != "path");
        members.push(("path".into(), text.into()));
    }
    let tokenizer = ds::Tokenizer::bytes()?;
    let data = Dataset::open(&spec.to_string(), Some(&tokenizer))?;
    let mut engine = Engine::new(&run["engine"].to_string(), model)?;
    engine.set_dataset(Some(&data))?;
    for report in engine.steps(count(part, "steps")?.try_into()?) {
        report?;
    }
    Ok(engine)
}

/// The gradient of parameter `p` in step `s`, from its present value.
fn gradient(p: usize, s: usize, weights: &[f32]) -> Vec<f32> {
    let target = |j: usize| ((j * 7 + s * 3 + p * 5) % 11) as f32 / 8.0;
    weights
        .iter()
        .enumerate()
        .map(|(j, w)| (w - target(j)) / 2.0)
        .collect()
}

/// Trains parameters of the program's own with gradients of its own.
fn external(run: &Value) -> Result<Engine, Box<dyn Error>> {
    let part = &run["external"];
    let mut parameters = Vec::new();
    for parameter in part["parameters"].elements() {
        let sizes = parameter["shape"]
            .elements()
            .iter()
            .map(|size| size.as_i64().unwrap_or(0));
        let shape = sizes.map(usize::try_from).collect::<Result<Vec<_>, _>>()?;
        let name = parameter["name"]
            .as_str()
            .ok_or("a parameter has no name")?;
        parameters.push(Parameter::new(name)?.shape(&shape));
    }
    let mut engine = Engine::new(
        &run["engine"].to_string(),
        Model::from_parameters(parameters)?,
    )?;
    let micro_batches = count(&run["engine"], "gradient_accumulation_steps")?;
    for step in 0..count(part, "steps")?.try_into()? {
        for _ in 0..micro_batches {
            let scope = engine.scope(None)?;
            let mut gradients = Vec::new();
            for (p, weights) in scope.tensors()?.iter().enumerate() {
                let values = gradient(p, step, weights.as_slice()?);
                gradients.push(Tensor::from_vec(values, &weights.shape()?)?);
            }
            scope.close()?;
            engine.add_gradients(&gradients)?;
            engine.step()?;
        }
    }
    Ok(engine)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (run, text, way, output) = match arguments.as_slice() {
        [_, run, text, way, output] => (run, text, way, output),
        _ => return Err("usage: same_run run.json TEXT built_in|external OUTPUT".into()),
    };
    let run = Value::parse(&std::fs::read_to_string(run)?)?;
    let engine = match way.as_str() {
        "built_in" => built_in(&run, text)?,
        "external" => external(&run)?,
        other => return Err(format!("{other} is neither built_in nor external").into()),
    };
    let mut bytes = Vec::new();
    for index in 0..engine.model().info()?.parameters {
        for value in engine.model().get_parameter(index)?.to_vec::<f32>()? {
            bytes.extend_from_slice(&value.to_le_bytes());
        }
    }
    std::fs::write(output, bytes)?;
    Ok(())
}
