//! Built-in models: training, saving and resuming, progress, generation, adapters.
mod common;

use std::ops::ControlFlow;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::sync::{Arc, Mutex};

use common::{trainer, weights, Scratch, CONFIG, SHAPE};
use ds::json::Value;
use ds::{
    Batch, DType, Dataset, Engine, GenerateOptions, Generator, Model, Status, Tensor, TextReply,
    Tokenizer, WeightForm,
};

#[test]
fn the_loss_decreases() {
    let scratch = Scratch::new();
    let mut engine = trainer(&scratch, CONFIG);
    let reports: Vec<_> = engine.steps(30).collect::<ds::Result<_>>().unwrap();
    assert_eq!(reports.len(), 30);
    assert!(
        reports[29].loss < reports[0].loss / 1.5,
        "{} {}",
        reports[0].loss,
        reports[29].loss
    );
    let last = &reports[29];
    assert_eq!((last.step, last.micro_steps, last.samples), (30, 60, 240));
    assert_eq!(
        (last.applied, last.skip, last.first_bad),
        (true, None, None)
    );
    assert_eq!(last.tokens, 2 * 4 * 16);
    assert!(last.grad_norm.unwrap() > 0.0 && last.lr == 0.01 && last.seconds > 0.0);
    let data = Dataset::text(scratch.book(), 16, None).unwrap();
    assert!(engine.evaluate(&data, Some(4)).unwrap() < reports[0].loss);
    let info = engine.info().unwrap();
    assert_eq!(
        (info.step, info.train_batch_size, info.zero_stage),
        (30, 8, 0)
    );
    assert_eq!(info.compute_dtype, DType::F32);
}

#[test]
fn ten_steps_and_ten_more_after_a_load_are_twenty() {
    let scratch = Scratch::new();
    let mut whole = trainer(&scratch, CONFIG);
    let mut first = trainer(&scratch, CONFIG);
    for report in first.steps(10) {
        report.unwrap();
    }
    first.set_blob("cursor", &[1, 0, 255]).unwrap();
    first.set_blob("gone", &[7]).unwrap();
    first.remove_blob("gone").unwrap();
    first.set_client_state(Some(r#"{"epoch": 3}"#)).unwrap();
    first
        .set_tokenizer(Some(&Tokenizer::bytes().unwrap()))
        .unwrap();
    let run = scratch.join("run");
    first.save(&run, Some("ten")).unwrap();
    let mut second = trainer(&scratch, CONFIG);
    second.load(&run, None).unwrap();
    assert_eq!(second.blobs().unwrap(), [("cursor".to_string(), 3)]);
    assert_eq!(second.blob("cursor").unwrap(), [1, 0, 255]);
    assert_eq!(second.blob("gone").unwrap_err().status(), Status::NotFound);
    let state = Value::parse(&second.client_state().unwrap()).unwrap();
    assert_eq!(state["epoch"].as_i64(), Some(3));
    for report in second.steps(10) {
        report.unwrap();
    }
    for report in whole.steps(20) {
        report.unwrap();
    }
    assert_eq!(weights(whole.model()), weights(second.model()));
    assert_ne!(weights(whole.model()), weights(first.model()));

    let about = Value::parse(&ds::checkpoint::inspect(&run, Some("ten")).unwrap()).unwrap();
    assert!(about.to_string().contains("\"ten\""), "{about}");
    ds::checkpoint::verify(&run, None).unwrap();
    assert_eq!(weights(&Model::open(&run).unwrap()), weights(first.model()));
    assert_eq!(
        Tokenizer::open(run.join("ten"))
            .unwrap()
            .vocab_size()
            .unwrap(),
        256
    );
    ds::checkpoint::delete(&run, "ten").unwrap();
    assert_eq!(
        ds::checkpoint::verify(&run, Some("ten"))
            .unwrap_err()
            .status(),
        Status::NotFound
    );
}

#[test]
fn forward_and_backward_are_train_batch() {
    let scratch = Scratch::new();
    let mut whole = trainer(&scratch, CONFIG);
    whole.train_batch().unwrap();
    let mut parts = trainer(&scratch, CONFIG);
    let data = Dataset::text(scratch.book(), 16, None).unwrap();
    for micro in 0..2 {
        let (mut ids, mut labels) = (Vec::new(), Vec::new());
        for sample in 0..4 {
            let tokens = data.sample(micro * 4 + sample).unwrap();
            ids.extend_from_slice(&tokens[..16]);
            labels.extend_from_slice(&tokens[1..]);
        }
        let ids = Tensor::from_vec(ids, &[4, 16]).unwrap();
        let labels = Tensor::from_slice(&labels, &[4, 16]).unwrap();
        let loss = parts.forward(&Batch::new(&ids).labels(&labels)).unwrap();
        assert!(loss.item().unwrap() > 0.0);
        parts.backward(&loss).unwrap();
        let report = parts.step().unwrap();
        assert_eq!(report.applied, micro == 1);
        assert_eq!(report.skip, (micro == 0).then_some(ds::Skip::Accumulating));
    }
    assert_eq!(weights(whole.model()), weights(parts.model()));
}

#[test]
fn progress_is_heard_and_may_end_a_call() {
    let scratch = Scratch::new();
    let mut engine = trainer(&scratch, CONFIG);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let copy = Arc::clone(&heard);
    engine
        .set_progress(move |progress| {
            copy.lock()
                .unwrap()
                .push((progress.call.to_string(), progress.done, progress.total));
            ControlFlow::Continue(())
        })
        .unwrap();
    engine.train_batch().unwrap();
    let parts = heard.lock().unwrap().clone();
    assert_eq!(parts[0], ("train_batch".to_string(), 0, 2));
    assert_eq!(parts.len(), 2);

    engine.set_progress(|_| ControlFlow::Break(())).unwrap();
    assert_eq!(Arc::strong_count(&heard), 1, "the first closure is gone");
    assert_eq!(engine.train_batch().unwrap_err().status(), Status::Callback);

    engine
        .set_progress(|progress| panic!("at {}", progress.done))
        .unwrap();
    let panic = catch_unwind(AssertUnwindSafe(|| engine.train_batch())).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "at 0");
    engine.clear_progress().unwrap();
    let mut steps = engine.steps(3);
    assert!(steps.next().unwrap().unwrap().applied);
    assert_eq!(steps.engine().info().unwrap().step, 2);
    assert_eq!(steps.size_hint(), (0, Some(2)));
}

#[test]
fn another_thread_interrupts_a_call() {
    let scratch = Scratch::new();
    let mut engine = trainer(&scratch, CONFIG);
    let interrupter = engine.interrupter();
    interrupter.interrupt(); // no call runs
    engine.train_batch().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let once = Mutex::new(Some(sender));
    engine
        .set_progress(move |_| {
            // The first part waits until the other thread has interrupted.
            if let Some(sender) = once.lock().unwrap().take() {
                let (done, wait) = std::sync::mpsc::channel::<()>();
                sender.send(done).unwrap();
                let _ = wait.recv();
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    let other = std::thread::spawn({
        let interrupter = interrupter.clone();
        move || {
            let _done = receiver.recv().unwrap();
            interrupter.interrupt();
        }
    });
    assert_eq!(engine.train_batch().unwrap_err().status(), Status::Aborted);
    other.join().unwrap();
    engine.clear_progress().unwrap();
    engine.train_batch().unwrap();
    drop(engine);
    interrupter.interrupt(); // nobody is there
}

#[test]
fn a_generator_streams_what_it_generates() {
    let model = Model::new(SHAPE, 3).unwrap();
    let mut generator = Generator::new(&model).unwrap();
    let options = GenerateOptions {
        max_tokens: 12,
        temperature: 1.0,
        seed: 5,
        ..Default::default()
    };
    let tokens = generator.generate(&[1, 2, 3], &options).unwrap();
    assert_eq!(tokens.len(), 12);
    let streamed: Vec<i32> = generator
        .tokens(&[1, 2, 3], &options)
        .unwrap()
        .collect::<ds::Result<_>>()
        .unwrap();
    assert_eq!(streamed, tokens);

    let mut seen = 0;
    let some = generator.generate_with(&[1, 2, 3], &options, |_| {
        seen += 1;
        if seen == 4 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!(some.unwrap(), tokens[..4]);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        generator.generate_with(&[1], &options, |token| panic!("token {token}"))
    }));
    assert!(panic
        .unwrap_err()
        .downcast_ref::<String>()
        .unwrap()
        .starts_with("token "));

    let mut first = generator.tokens(&[1, 2, 3], &options).unwrap();
    assert_eq!(first.next().unwrap().unwrap(), tokens[0]);
    drop(first); // ends the call
    assert_eq!(generator.generate(&[1, 2, 3], &options).unwrap(), tokens);
    let mut wrong = generator.tokens(&[], &options).unwrap();
    assert_eq!(
        wrong.next().unwrap().unwrap_err().status(),
        Status::InvalidArgument
    );
    assert!(wrong.next().is_none());
    drop(wrong);
    generator.interrupter().interrupt(); // no call runs

    let stop = GenerateOptions {
        stop_token: Some(tokens[2]),
        ..options.clone()
    };
    let stopped = generator.generate(&[1, 2, 3], &stop).unwrap();
    assert!(stopped.len() <= 2 && tokens.starts_with(&stopped));
}

fn prompts() -> Vec<Vec<i32>> {
    vec![
        vec![72, 105],
        vec![1],
        (0..20).collect(),
        vec![5, 6, 7],
        vec![200; 9],
    ]
}

fn sampling(seed: i64) -> GenerateOptions {
    GenerateOptions {
        max_tokens: 12,
        temperature: 1.0,
        top_k: 50,
        seed,
        ..Default::default()
    }
}

#[test]
fn texts_together_are_those_of_one_after_the_other() {
    let model = Model::new(SHAPE, 3).unwrap();
    let mut generator = Generator::new(&model).unwrap();
    let expected: Vec<Vec<i32>> = (11..)
        .zip(&prompts())
        .map(|(seed, prompt)| generator.generate(prompt, &sampling(seed)).unwrap())
        .collect();
    for at_once in 0..4 {
        let texts = generator.generate_batch(&prompts(), &sampling(11), at_once);
        assert_eq!(texts.unwrap(), expected);
    }
    let stop = GenerateOptions {
        stop_token: Some(expected[1][0]),
        ..sampling(11)
    };
    let stopped = generator.generate_batch(&prompts(), &stop, 2).unwrap();
    assert_eq!(stopped[1], []);
    assert_eq!(stopped[0], generator.generate(&[72, 105], &stop).unwrap());

    let none: [&[i32]; 0] = [];
    let nothing = generator.generate_batch(&none, &sampling(1), 0).unwrap();
    assert!(nothing.is_empty());
    let empty: [&[i32]; 3] = [&[1, 2], &[], &[3]];
    let error = generator.generate_batch(&empty, &sampling(1), 0);
    let error = error.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    let text = error.message();
    assert!(
        text.contains("counts[1]") || text.contains("prompt 1"),
        "{text}"
    );
    let wrong: [&[i32]; 3] = [&[1, 2], &[3], &[1000]];
    let error = generator.generate_batch(&wrong, &sampling(1), 0);
    let error = error.unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.message().contains("prompt 2: "), "{error}");
}

#[test]
fn a_closure_hears_several_texts_and_ends_one_or_all() {
    let model = Model::new(SHAPE, 3).unwrap();
    let mut generator = Generator::new(&model).unwrap();
    let (prompts, options) = (prompts(), sampling(11));
    let all = generator.generate_batch(&prompts, &options, 0).unwrap();

    let mut heard = vec![Vec::new(); prompts.len()];
    let some = generator.generate_batch_with(&prompts, &options, 2, |text, token| {
        heard[text].push(token);
        if text == 2 && heard[text].len() == 4 {
            TextReply::EndText
        } else {
            TextReply::GoOn
        }
    });
    let some = some.unwrap();
    assert_eq!(some, heard);
    assert_eq!(some[2], all[2][..4]);
    for text in [0, 1, 3, 4] {
        assert_eq!(some[text], all[text]);
    }

    let mut count = 0;
    let some = generator.generate_batch_with(&prompts, &options, 2, |_, _| {
        count += 1;
        if count == 9 {
            TextReply::EndAll
        } else {
            TextReply::GoOn
        }
    });
    let some = some.unwrap();
    assert_eq!(some.iter().map(Vec::len).sum::<usize>(), 9);
    assert_eq!(some[2..], vec![Vec::<i32>::new(); 3], "two at once");
    assert!(all
        .iter()
        .zip(&some)
        .all(|(all, some)| all.starts_with(some)));

    let panic = catch_unwind(AssertUnwindSafe(|| {
        generator.generate_batch_with(&prompts, &options, 2, |text, _| {
            assert!(text != 1, "text {text}");
            TextReply::GoOn
        })
    }));
    let panic = panic.unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "text 1");
    let interrupter = generator.interrupter();
    let ended = generator.generate_batch_with(&prompts, &options, 2, |_, _| {
        interrupter.interrupt();
        TextReply::GoOn
    });
    assert_eq!(ended.unwrap_err().status(), Status::Aborted);
    let again = generator.generate_batch(&prompts, &options, 0).unwrap();
    assert_eq!(again, all);
}

#[test]
fn prepared_weights_outlive_the_model() {
    let model = Model::new(SHAPE, 3).unwrap();
    let ids = Tensor::from_vec(vec![1i32, 2, 3, 4], &[1, 4]).unwrap();
    let batch = Batch::new(&ids);
    let mut own = Generator::new(&model).unwrap();
    assert_eq!(own.info().unwrap().weights, WeightForm::Model);
    let logits = own.logits(&batch).unwrap();
    assert_eq!(logits.shape().unwrap(), [1, 4, 256]);
    assert_eq!(
        own.hidden_states(&batch).unwrap().shape().unwrap(),
        [1, 4, 16]
    );
    let error = Generator::prepare_with(&model, r#"{"weights": "model"}"#).unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(Generator::prepare(&model, WeightForm::Model).is_err());

    let mut copy = Generator::prepare(&model, WeightForm::F32).unwrap();
    let mut small = Generator::prepare(&model, WeightForm::Int8).unwrap();
    let master: Vec<f32> = model.get_parameter(0).unwrap().to_vec().unwrap();
    drop(model);
    assert_eq!(copy.info().unwrap().weights, WeightForm::F32);
    assert_eq!(
        copy.get_parameter(0).unwrap().to_vec::<f32>().unwrap(),
        master
    );
    let near = |a: &Tensor<'_>, b: &Tensor<'_>| {
        let (a, b): (Vec<f32>, Vec<f32>) = (a.to_vec().unwrap(), b.to_vec().unwrap());
        a.iter()
            .zip(&b)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max)
    };
    assert!(near(&copy.logits(&batch).unwrap(), &logits) < 1e-5);
    assert!(near(&small.logits(&batch).unwrap(), &logits) < 0.1);
    let moved = std::thread::spawn(move || small.generate(&[1], &GenerateOptions::default()));
    assert_eq!(moved.join().unwrap().unwrap().len(), 64);
}

#[test]
fn a_copy_generates_while_the_engine_trains_on() {
    let scratch = Scratch::new();
    let mut engine = trainer(&scratch, CONFIG);
    engine.train_batch().unwrap();
    let copy = engine.model().copy().unwrap();
    let before = weights(&copy);
    let other = std::thread::spawn(move || {
        let options = GenerateOptions {
            max_tokens: 20,
            ..Default::default()
        };
        let tokens = Generator::new(&copy)
            .unwrap()
            .generate(&[84], &options)
            .unwrap();
        (copy, tokens)
    });
    for report in engine.steps(5) {
        report.unwrap();
    }
    let (copy, tokens) = other.join().unwrap();
    assert_eq!(tokens.len(), 20);
    assert_eq!(weights(&copy), before);
    assert_ne!(weights(engine.model()), before);
}

#[test]
fn adapters_on_a_hugging_face_folder() {
    let scratch = Scratch::new();
    let (base, adapter) = (scratch.join("base"), scratch.join("adapter"));
    let fresh = Model::new(SHAPE, 3).unwrap();
    fresh.export(&base, DType::F32, None).unwrap();
    let mut model = Model::open(&base).unwrap();
    assert_eq!(weights(&model), weights(&fresh));
    let plain = model.info().unwrap().parameters;
    model
        .add_lora(r#"{"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}"#)
        .unwrap();
    let info = model.info().unwrap();
    assert!(info.parameters > plain && info.trainable_elements < info.elements / 2);
    let mut engine = Engine::new(CONFIG, model).unwrap();
    engine
        .set_dataset(Some(&Dataset::text(scratch.book(), 16, None).unwrap()))
        .unwrap();
    let reports: Vec<_> = engine.steps(10).collect::<ds::Result<_>>().unwrap();
    assert!(reports[9].loss < reports[0].loss);
    let mut model = engine.into_model();
    model.save_adapter(&adapter, DType::F32).unwrap();
    let mut again = Model::open(&base).unwrap();
    again.load_adapter(&adapter).unwrap();
    assert_eq!(weights(&again), weights(&model));
    model.merge_lora().unwrap();
    assert_eq!(model.info().unwrap().parameters, plain);
    model.set_trainable("*", false).unwrap();
    assert_eq!(model.info().unwrap().trainable_elements, 0);
    assert!(!model.parameter(0).unwrap().trainable);
}

#[test]
fn configurations_are_read_as_asked() {
    let scratch = Scratch::new();
    let path = scratch.join("ds_config.json");
    std::fs::write(&path, CONFIG).unwrap();
    let options = r#"{"set": {"optimizer.params.lr": 0.25}}"#;
    let model = Model::new(SHAPE, 3).unwrap();
    let engine = Engine::from_file(&path)
        .options(options)
        .build(model)
        .unwrap();
    assert_eq!(engine.optimizer().unwrap().info().unwrap().rates, [0.25]);
    engine.optimizer().unwrap().set_lr(0.125).unwrap();
    assert_eq!(engine.optimizer().unwrap().info().unwrap().rates, [0.125]);
    let config = Value::parse(&engine.config().unwrap()).unwrap();
    assert_eq!(config["config"]["train_batch_size"].as_i64(), Some(8));
    for report in [engine.memory_report().unwrap(), engine.profile().unwrap()] {
        Value::parse(&report).unwrap();
    }
    let rejected = Engine::builder("{")
        .try_build(engine.into_model())
        .unwrap_err();
    assert_eq!(rejected.status(), Status::Config);
    let missing = Engine::from_file(&scratch.join("none.json")).try_build(rejected.model);
    assert!(missing.unwrap_err().message().contains("none.json"));

    let plan = ds::config::plan(SHAPE, CONFIG, Some(r#"{"world": 2}"#)).unwrap();
    assert!(Value::parse(&plan).unwrap()["memory_per_rank"] != Value::Null);
    assert!(Value::parse(&ds::config::schema().unwrap()).unwrap()["properties"] != Value::Null);
    for report in [ds::report().unwrap(), ds::memory::report().unwrap()] {
        assert!(Value::parse(&report).is_ok());
    }
}

#[test]
fn models_tell_what_they_are() {
    let model = Model::new(SHAPE, 3).unwrap();
    let info = model.info().unwrap();
    assert_eq!((info.vocab_size, info.max_positions), (256, 32));
    assert_eq!(info.device.to_string(), "cpu");
    let first = model.parameter(0).unwrap();
    assert_eq!(model.parameter_index(&first.name).unwrap(), 0);
    assert_eq!(first.elements, first.shape.iter().product());
    assert_eq!(
        model.parameter_index("none").unwrap_err().status(),
        Status::NotFound
    );
    let list = Value::parse(&model.parameters().unwrap()).unwrap();
    assert_eq!(list.elements().len(), info.parameters);
    assert_eq!(list[0]["name"].as_str(), Some(first.name.as_str()));
    let config = Value::parse(&model.config().unwrap()).unwrap();
    assert_eq!(config["n_embd"].as_i64(), Some(16));
    assert!(format!("{model:?}").starts_with("Model("));
}

#[test]
fn tokenizers_and_data_sets() {
    let scratch = Scratch::new();
    let book = scratch.book();
    let text = std::fs::read_to_string(&book).unwrap();
    let tokenizer = Tokenizer::train(&text, Some(r#"{"vocab_size": 300}"#)).unwrap();
    let ids = tokenizer.encode("the lazy fox", false).unwrap();
    assert!(ids.len() < 12);
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), "the lazy fox");
    let again = Tokenizer::from_json(&tokenizer.to_json().unwrap()).unwrap();
    assert_eq!(again.encode("the lazy fox", false).unwrap(), ids);
    let spelled = tokenizer.id_to_token(ids[0]).unwrap();
    assert_eq!(tokenizer.token_to_id(&spelled).unwrap(), ids[0]);
    assert_eq!(
        tokenizer.token_to_id("no such").unwrap_err().status(),
        Status::NotFound
    );
    assert_eq!(Tokenizer::bytes().unwrap().end_of_text().unwrap(), None);
    let prefix = scratch.join("corpus");
    Dataset::build(&book, &tokenizer, false, &prefix).unwrap();
    let twice = scratch.join("twice");
    Dataset::merge(&[&prefix, &prefix], &twice).unwrap();
    let bytes = |path: &Path| std::fs::metadata(path.with_extension("bin")).unwrap().len();
    assert_eq!(bytes(&twice), 2 * bytes(&prefix));
    let data = Dataset::text(&prefix, 8, None).unwrap();
    assert!(data.samples().unwrap() > 10);
    assert_eq!(data.sequence_length().unwrap(), 8);
    let sample = data.sample(0).unwrap();
    assert_eq!(
        data.field(0, "ids").unwrap().to_vec::<i32>().unwrap(),
        sample[..8]
    );
    assert_eq!(
        data.field(0, "labels").unwrap().to_vec::<i32>().unwrap(),
        sample[1..]
    );
    assert!(data.field(0, "wrong").is_err());
}
