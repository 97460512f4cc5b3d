//! Programs that compute gradients themselves: updates are those that hands compute.
mod common;

use common::{own_model, Scratch, SGD};
use ds::{DType, Engine, Extent, Model, Parameter, Status, Tensor, Values};

fn f32s(tensor: &Tensor<'_>) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

#[test]
fn a_step_is_what_a_hand_computes() {
    let mut engine = Engine::new(SGD, own_model()).unwrap();
    let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3]).unwrap();
    let b = Tensor::from_vec(vec![-1.0f32, 1.0], &[2]).unwrap();
    engine.add_gradients(&[&a, &b]).unwrap();
    engine.add_gradients_of(&[1], &[&b]).unwrap(); // adds up
    engine.set_loss(2.5).unwrap();
    let gathered = engine
        .get_values(1, Values::Gradient, Extent::Whole)
        .unwrap();
    assert_eq!(f32s(&gathered), [-2.0, 2.0]);
    let report = engine.step().unwrap();
    assert!(report.applied);
    assert_eq!(report.loss, 2.5);
    let norm = (91.0f64 + 8.0).sqrt();
    assert!((report.grad_norm.unwrap() - norm).abs() < 1e-6);
    // 1 - 0.5 * gradient, and 0 - 0.5 * gradient
    let expected: Vec<f32> = (1..=6).map(|g| 1.0 - 0.5 * g as f32).collect();
    assert_eq!(f32s(&engine.model().get_parameter(0).unwrap()), expected);
    assert_eq!(f32s(&engine.model().get_parameter(1).unwrap()), [1.0, -1.0]);
    assert_eq!(
        engine
            .model()
            .view_parameter(0)
            .unwrap()
            .as_slice::<f32>()
            .unwrap(),
        expected
    );
    assert_eq!(engine.local_range(0).unwrap(), 0..6);

    engine.add_gradients(&[&a, &b]).unwrap();
    engine.discard_gradients().unwrap();
    let left = engine
        .get_values(0, Values::Gradient, Extent::Whole)
        .unwrap();
    assert_eq!(f32s(&left), [0.0; 6]);
    let error = engine.add_gradients_of(&[0, 1], &[&a]).unwrap_err();
    assert!(error.message().contains("2 parameters have 1 gradients"));
    assert_eq!(
        engine.add_gradients(&[&b, &a]).unwrap_err().status(),
        Status::InvalidArgument
    );
}

#[test]
fn gradients_are_written_where_they_gather() {
    let mut engine = Engine::new(SGD, own_model()).unwrap();
    for step in 0..3 {
        let mut views = engine.views().unwrap();
        for (weights, gradients) in views.parameters.iter().zip(&mut views.gradients) {
            let weights = weights.as_slice::<f32>().unwrap();
            let gradients = gradients.as_mut_slice::<f32>().unwrap();
            for (gradient, weight) in gradients.iter_mut().zip(weights) {
                assert_eq!(*gradient, 0.0);
                *gradient += weight - 3.0; // of (w - 3)^2 / 2
            }
        }
        assert!(engine.step().unwrap().applied);
        let far = 0.5f32.powi(step + 1);
        assert_eq!(
            f32s(&engine.model().get_parameter(0).unwrap()),
            [3.0 - 2.0 * far; 6]
        );
        assert_eq!(
            f32s(&engine.model().get_parameter(1).unwrap()),
            [3.0 - 3.0 * far; 2]
        );
    }
    let mut one = engine.view_gradient(1).unwrap();
    one.as_mut_slice::<f32>().unwrap()[0] = f32::NAN;
    let report = engine.step().unwrap();
    assert_eq!(report.skip, Some(ds::Skip::NonFinite));
    assert_eq!(report.grad_norm, None);
    let bad = report.first_bad.unwrap();
    assert_eq!((bad.parameter, bad.element), (1, 0));
    assert!(bad.value.is_nan());
}

#[test]
fn lent_memory_receives_new_values() {
    let values = vec![1.0f32; 4];
    let address = values.as_ptr();
    let memory = Tensor::from_vec(values, &[4]).unwrap();
    let model = Model::from_parameters(vec![
        Parameter::new("w")
            .unwrap()
            .lend(memory)
            .alias("tied")
            .unwrap(),
        Parameter::new("still")
            .unwrap()
            .shape(&[2])
            .dtype(DType::F32)
            .frozen(),
    ])
    .unwrap();
    assert_eq!(model.parameter_index("tied").unwrap(), 0);
    let mut engine = Engine::new(SGD, model).unwrap();
    let gradient = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], &[4]).unwrap();
    engine.add_gradients_of(&[0], &[gradient]).unwrap();
    engine.step().unwrap();
    let lent = engine.model().lent(0).unwrap().as_slice::<f32>().unwrap();
    assert_eq!(lent, [0.5, 0.0, -0.5, -1.0]);
    assert_eq!(lent.as_ptr(), address, "it is the memory of the vector");
    assert!(engine.model().lent(1).is_none() && engine.model().lent(2).is_none());
    let two = Tensor::from_vec(vec![2.0f32; 4], &[4]).unwrap();
    engine.set_parameter(0, &two).unwrap();
    assert_eq!(
        engine.model().lent(0).unwrap().as_slice::<f32>().unwrap(),
        [2.0; 4]
    );
}

#[test]
fn values_of_the_optimizer_are_read_and_set() {
    let adam = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0,
        "optimizer": {"type": "Adam", "params": {"lr": 0.1, "betas": [0.5, 0.5]}}}"#;
    let mut engine = Engine::new(adam, own_model()).unwrap();
    let b = Tensor::from_vec(vec![2.0f32, -4.0], &[2]).unwrap();
    engine.add_gradients_of(&[1], &[&b]).unwrap();
    engine.step().unwrap();
    let names = engine.optimizer().unwrap().state_names(1).unwrap();
    assert_eq!(names, ["exp_avg", "exp_avg_sq"]);
    let first = engine
        .get_values(1, Values::State("exp_avg"), Extent::Whole)
        .unwrap();
    assert_eq!(f32s(&first), [1.0, -2.0]);
    let second = engine
        .get_values(1, Values::State("exp_avg_sq"), Extent::Local)
        .unwrap();
    assert_eq!(f32s(&second), [2.0, 8.0]);
    engine
        .set_values(1, Values::State("exp_avg"), Extent::Whole, &b)
        .unwrap();
    let first = engine
        .get_values(1, Values::State("exp_avg"), Extent::Whole)
        .unwrap();
    assert_eq!(f32s(&first), [2.0, -4.0]);
    engine
        .set_values(1, Values::Parameter, Extent::Whole, &b)
        .unwrap();
    assert_eq!(f32s(&engine.model().get_parameter(1).unwrap()), [2.0, -4.0]);
    let error = engine
        .get_values(1, Values::State("momentum"), Extent::Whole)
        .unwrap_err();
    assert_eq!(error.status(), Status::NotFound);
    assert_eq!(engine.optimizer().unwrap().info().unwrap().steps, 1);
}

#[test]
fn scopes_show_weights_and_edits_change_them() {
    let mut engine = Engine::new(SGD, own_model()).unwrap();
    let gradients: Vec<Tensor<'_>> = {
        let scope = engine.scope(None).unwrap();
        let other = engine.scope(Some(&[1])).unwrap(); // a parameter may be in several
        assert_eq!((scope.len(), other.len(), scope.is_empty()), (2, 1, false));
        assert_eq!(f32s(&other.tensor(0).unwrap()), [0.0; 2]);
        let weights = scope.tensors().unwrap();
        scope.close().unwrap();
        let minus = |weight: &ds::TensorRef<'_>| {
            let values = weight
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .map(|w| w - 3.0)
                .collect();
            Tensor::from_vec(values, &weight.shape().unwrap()).unwrap()
        };
        weights.iter().map(minus).collect()
    };
    engine.add_gradients(&gradients).unwrap();
    engine.step().unwrap();
    assert_eq!(f32s(&engine.model().get_parameter(0).unwrap()), [2.0; 6]);

    let mut edit = engine.edit(Some(&[1, 0])).unwrap();
    for tensor in &mut edit.tensors().unwrap() {
        tensor.as_mut_slice::<f32>().unwrap()[0] = 7.0;
    }
    edit.tensor(1).unwrap().as_mut_slice::<f32>().unwrap()[5] = 8.0;
    edit.commit(0).unwrap();
    assert_eq!(
        f32s(&engine.model().get_parameter(0).unwrap()),
        [7.0, 2.0, 2.0, 2.0, 2.0, 8.0]
    );
    assert_eq!(f32s(&engine.model().get_parameter(1).unwrap()), [7.0, 1.5]);
    let mut dropped = engine.edit(None).unwrap();
    assert_eq!(dropped.len(), 2);
    dropped.tensor(0).unwrap().as_mut_slice::<f32>().unwrap()[0] = -1.0;
    drop(dropped);
    engine.edit(None).unwrap().close().unwrap();
    assert_eq!(f32s(&engine.model().get_parameter(0).unwrap())[0], 7.0);
    let error = engine.edit(Some(&[0, 1, 0])).map(drop).unwrap_err();
    assert!(
        error.message().contains("parameter 0 is there twice"),
        "{error}"
    );
    // A forgotten scope is told at the next step, not a crash.
    std::mem::forget(engine.scope(None).unwrap());
    engine.add_gradients(&gradients).unwrap();
    assert_eq!(engine.step().unwrap_err().status(), Status::State);
}

#[test]
fn boundaries_are_the_program_s_when_it_says_so() {
    let mut engine = Engine::new(SGD, own_model()).unwrap();
    let b = Tensor::from_vec(vec![1.0f32; 2], &[2]).unwrap();
    engine.set_boundary(Some(false)).unwrap();
    for _ in 0..2 {
        engine.add_gradients_of(&[1], &[&b]).unwrap();
        assert_eq!(engine.step().unwrap().skip, Some(ds::Skip::Accumulating));
    }
    engine.set_boundary(Some(true)).unwrap();
    engine.add_gradients_of(&[1], &[&b]).unwrap();
    assert!(engine.step().unwrap().applied);
    engine.set_boundary(None).unwrap();
    assert_eq!(f32s(&engine.model().get_parameter(1).unwrap()), [-1.5; 2]);
}

#[test]
fn views_of_masters_are_written_and_count() {
    let mut model = own_model();
    model
        .view_parameter_mut(1)
        .unwrap()
        .as_mut_slice::<f32>()
        .unwrap()[1] = 5.0;
    let value = Tensor::from_vec(vec![2.0f32; 6], &[2, 3]).unwrap();
    model.set_parameter(0, &value).unwrap();
    let mut engine = Engine::new(SGD, model).unwrap();
    engine
        .view_parameter_mut(1)
        .unwrap()
        .as_mut_slice::<f32>()
        .unwrap()[0] = 4.0;
    assert_eq!(f32s(&engine.model().get_parameter(1).unwrap()), [4.0, 5.0]);
    assert_eq!(f32s(&engine.model().get_parameter(0).unwrap()), [2.0; 6]);
    let scratch = Scratch::new();
    engine.model().save(scratch.path(), Some("now")).unwrap();
    let again = Model::open(scratch.path()).unwrap();
    assert_eq!(f32s(&again.get_parameter(1).unwrap()), [4.0, 5.0]);
}
