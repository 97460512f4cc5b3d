//! Groups whose ranks are threads of this process.
// Ranks are threads that must all be there before the first is waited for; older clippy would have them
// joined one by one.
#![allow(clippy::needless_collect)]
mod common;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Mutex;
use std::time::Duration;

use common::{own_model, trainer, weights, Scratch, CONFIG};
use ds::json::Value;
use ds::{
    Collective, Comm, Engine, Error, GenerateOptions, Generator, MemoryStore, Model, ReduceOp,
    Status, Store, Tensor, WeightForm,
};

const OPTIONS: &str = r#"{"timeout_seconds": 60}"#;

/// Runs a program on each rank's thread and gives what they give.
fn world<T: Send>(size: usize, body: impl Fn(usize, &Comm) -> T + Sync) -> Vec<T> {
    let store = MemoryStore::new(Duration::from_secs(60));
    std::thread::scope(|scope| {
        let rank = |rank: usize| {
            let (store, body) = (&store, &body);
            scope.spawn(move || {
                let comm = Comm::with_store(rank, size, Some(OPTIONS), store).unwrap();
                let result = body(rank, &comm);
                comm.finalize().unwrap();
                result
            })
        };
        let ranks: Vec<_> = (0..size).map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn tensor(values: &[f32]) -> Tensor<'static> {
    Tensor::from_vec(values.to_vec(), &[values.len()]).unwrap()
}

fn f32s(tensor: &Tensor<'_>) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

#[test]
fn collectives() {
    world(2, |rank, comm| {
        let me = rank as f32;
        let info = comm.info().unwrap();
        assert_eq!(
            (info.rank, info.size, info.local_size, info.nodes),
            (rank, 2, 2, 1)
        );
        let mut sum = tensor(&[1.0 + me, 10.0]);
        comm.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        assert_eq!(f32s(&sum), [3.0, 20.0]);
        let mut all = tensor(&[0.0; 2]);
        comm.all_gather(&mut all, &tensor(&[me])).unwrap();
        assert_eq!(f32s(&all), [0.0, 1.0]);
        let mut piece = tensor(&[0.0]);
        comm.reduce_scatter(&mut piece, &tensor(&[me, 4.0]), ReduceOp::Max)
            .unwrap();
        assert_eq!(f32s(&piece), [if rank == 0 { 1.0 } else { 4.0 }]);
        comm.all_to_all(&mut all, &tensor(&[me, me + 10.0]))
            .unwrap();
        assert_eq!(
            f32s(&all),
            if rank == 0 { [0.0, 1.0] } else { [10.0, 11.0] }
        );
        comm.broadcast(&mut all, 1).unwrap();
        assert_eq!(f32s(&all), [10.0, 11.0]);

        let mut several = [tensor(&[me]), tensor(&[me, 2.0])];
        comm.all_reduce_coalesced(&mut several, ReduceOp::Average)
            .unwrap();
        assert_eq!(
            (f32s(&several[0]), f32s(&several[1])),
            (vec![0.5], vec![0.5, 2.0])
        );
        let mut pieces = [tensor(&[0.0]), tensor(&[0.0])];
        let inputs = [tensor(&[1.0, 2.0]), tensor(&[me, me])];
        comm.reduce_scatter_coalesced(&mut pieces, &inputs, ReduceOp::Sum)
            .unwrap();
        assert_eq!(
            (f32s(&pieces[0]), f32s(&pieces[1])),
            (vec![2.0 + 2.0 * me], vec![1.0])
        );
        let mut wholes = [tensor(&[0.0; 2]), tensor(&[0.0; 2])];
        comm.all_gather_coalesced(&mut wholes, &[tensor(&[me]), tensor(&[-me])])
            .unwrap();
        assert_eq!(
            (f32s(&wholes[0]), f32s(&wholes[1])),
            (vec![0.0, 1.0], vec![0.0, -1.0])
        );
        assert!(comm
            .all_gather_coalesced(&mut wholes, &[tensor(&[me])])
            .is_err());

        let mut shared = comm.shared_tensor::<f32>(&[2]).unwrap();
        shared.as_mut_slice::<f32>().unwrap().fill(me);
        comm.all_reduce(&mut shared, ReduceOp::Sum).unwrap();
        assert_eq!(f32s(&shared), [1.0; 2]);

        assert!(comm.split(None, 0).unwrap().is_none());
        let alone = comm.split(Some(rank), 0).unwrap().unwrap();
        assert_eq!(alone.info().unwrap().size, 1);
        alone.finalize().unwrap();
        comm.barrier().unwrap();
        let report = Value::parse(&comm.report().unwrap()).unwrap();
        assert_eq!(report["size"].as_i64(), Some(2));
        comm.join().unwrap();
    });
}

#[test]
fn operations_go_on_beside_the_program() {
    world(2, |rank, comm| {
        let other = 1 - rank;
        let sum = Collective::all_reduce(tensor(&[rank as f32, 1.0]), ReduceOp::Sum);
        let sum = comm.start(sum.label("loss").unwrap()).unwrap();
        let send = comm
            .start(Collective::send(tensor(&[rank as f32 + 5.0]), other, 3))
            .unwrap();
        let receive = comm
            .start(Collective::receive(tensor(&[0.0]), other, 3))
            .unwrap();
        let counts = Collective::all_gather(tensor(&[0.0; 3]), tensor(&vec![1.0; rank + 1]));
        let counts = comm.start(counts.output_counts(&[1, 2])).unwrap();
        let received = receive.wait().unwrap().output.unwrap();
        assert_eq!(f32s(&received), [other as f32 + 5.0]);
        let sent = send.wait().unwrap();
        assert_eq!(f32s(&sent.input.unwrap()), [rank as f32 + 5.0]);
        let done = std::thread::spawn(move || sum.wait())
            .join()
            .unwrap()
            .unwrap();
        assert_eq!(
            (done.participants, f32s(&done.output.unwrap())),
            (2, vec![1.0, 2.0])
        );
        assert_eq!(f32s(&counts.wait().unwrap().output.unwrap()), [1.0; 3]);

        let root = |tensor| (rank == 0).then_some(tensor);
        let gather = Collective::gather(root(tensor(&[0.0; 2])), tensor(&[rank as f32]), 0);
        let gathered = comm.start(gather).unwrap().wait().unwrap().output;
        assert_eq!(
            gathered.map(|all| f32s(&all)),
            (rank == 0).then(|| vec![0.0, 1.0])
        );
        let scatter = Collective::scatter(tensor(&[0.0]), root(tensor(&[8.0, 9.0])), 0);
        let piece = comm.start(scatter).unwrap().wait().unwrap().output.unwrap();
        assert_eq!(f32s(&piece), [8.0 + rank as f32]);
        let reduce = Collective::reduce(tensor(&[2.0]), ReduceOp::Sum, 1);
        let reduced = comm.start(reduce).unwrap().wait().unwrap().output.unwrap();
        assert!(rank == 0 || f32s(&reduced) == [4.0]);
        let barrier = comm
            .start(Collective::barrier().timeout(Duration::from_secs(50)))
            .unwrap();
        barrier.wait().unwrap();
        let last = comm
            .start(Collective::broadcast(tensor(&[1.0]), 0))
            .unwrap();
        while !last.test().unwrap() {
            std::thread::yield_now();
        }
        let wrong = Collective::all_gather(tensor(&[0.0; 3]), tensor(&[0.0]));
        assert!(comm.start(wrong.output_counts(&[3])).is_err());
    });
}

#[test]
fn every_zero_stage_trains_the_same_model() {
    let scratch = Scratch::new();
    let train = |stage: u8| {
        world(2, |_, comm| {
            let config = CONFIG.replacen(
                '{',
                &format!("{{\"zero_optimization\": {{\"stage\": {stage}}},"),
                1,
            );
            let model = ds::Model::new(common::SHAPE, 7).unwrap();
            let mut engine = Engine::builder(&config).comm(comm).build(model).unwrap();
            let data = ds::Dataset::text(scratch.book(), 16, None).unwrap();
            engine.set_dataset(Some(&data)).unwrap();
            for report in engine.steps(4) {
                report.unwrap();
            }
            assert_eq!(engine.info().unwrap().zero_stage, stage);
            weights(engine.model())
        })
    };
    let alone = train(0);
    assert_eq!(alone[0], alone[1]);
    assert_eq!(train(3), alone);
    let single = trainer(&scratch, CONFIG);
    assert_ne!(weights(single.model()), alone[0], "it has trained");
}

#[test]
fn scopes_gather_what_is_spread() {
    let config = r#"{"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "zero_optimization": {"stage": 3},
        "zero_allow_untested_optimizer": true,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5}}}"#;
    world(2, |rank, comm| {
        let mut engine = Engine::builder(config)
            .comm(comm)
            .build(own_model())
            .unwrap();
        for step in 0..3 {
            for parameter in 0..2 {
                let scope = engine.scope(Some(&[parameter])).unwrap();
                let weight = scope.tensor(0).unwrap();
                let shift = if rank == 0 { 2.0 } else { 4.0 }; // 3 on average
                let values = weight
                    .as_slice::<f32>()
                    .unwrap()
                    .iter()
                    .map(|w| w - shift)
                    .collect();
                let gradient = Tensor::from_vec(values, &weight.shape().unwrap()).unwrap();
                drop(weight);
                scope.close().unwrap();
                engine.add_gradients_of(&[parameter], &[gradient]).unwrap();
            }
            assert!(engine.step().unwrap().applied);
            let far = 0.5f32.powi(step + 1);
            let a = engine.model().get_parameter(0).unwrap();
            assert_eq!(f32s(&a), [3.0 - 2.0 * far; 6]);
        }
        let part = engine.local_range(0).unwrap();
        let local = engine
            .get_values(0, ds::Values::Parameter, ds::Extent::Local)
            .unwrap();
        assert_eq!(local.elements().unwrap(), part.len());
        let mut edit = engine.edit(Some(&[1])).unwrap();
        edit.tensor(0)
            .unwrap()
            .as_mut_slice::<f32>()
            .unwrap()
            .fill(rank as f32 + 20.0);
        edit.commit(1).unwrap();
        assert_eq!(f32s(&engine.model().get_parameter(1).unwrap()), [21.0; 2]);
    });
}

/// A store that answers everything with an error or a panic.
struct Broken(&'static str);

impl Store for Broken {
    fn put(&self, _: &str, _: &[u8]) -> ds::Result<()> {
        match self.0 {
            "panic" => panic!("the store is on fire"),
            text => Err(Error::new(Status::Io, text)),
        }
    }
    fn get(&self, key: &str) -> ds::Result<Vec<u8>> {
        self.put(key, &[]).map(|()| Vec::new())
    }
}

#[test]
fn a_store_s_errors_and_panics_reach_the_caller() {
    let error = Comm::with_store(0, 2, Some(OPTIONS), &Broken("the disk is full")).unwrap_err();
    assert_eq!(error, Error::new(Status::Io, "the disk is full"));
    let join = || Comm::with_store(1, 2, Some(OPTIONS), &Broken("panic"));
    let panic = catch_unwind(AssertUnwindSafe(join)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the store is on fire"));
    let store = MemoryStore::new(Duration::from_millis(50));
    let error = Comm::with_store(0, 2, Some(OPTIONS), &store).unwrap_err();
    assert_eq!(error.status(), Status::Comm);
    assert!(error.message().contains("rank 1"), "{error}");
    assert_eq!(store.get("none").unwrap_err().status(), Status::NotFound);
}

#[test]
fn a_group_is_aborted_from_another_thread() {
    let aborters = Mutex::new(Vec::new());
    let store = MemoryStore::new(Duration::from_secs(60));
    let errors: Vec<Error> = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let (store, aborters) = (&store, &aborters);
                scope.spawn(move || {
                    let comm = Comm::with_store(rank, 2, Some(OPTIONS), store).unwrap();
                    aborters.lock().unwrap().push(comm.aborter());
                    if rank == 0 {
                        comm.barrier().unwrap_err()
                    } else {
                        while aborters.lock().unwrap().len() < 2 {
                            std::thread::yield_now();
                        }
                        comm.abort().unwrap();
                        comm.barrier().unwrap_err()
                    }
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for error in errors {
        assert_eq!(error.status(), Status::Aborted, "{error}");
    }
    for aborter in aborters.into_inner().unwrap() {
        aborter.abort(); // the group is gone
    }
}

#[test]
fn a_process_alone_is_a_group_too() {
    let comm = Comm::from_environment(None).unwrap();
    let mut one = tensor(&[1.0]);
    comm.all_reduce(&mut one, ReduceOp::Sum).unwrap();
    assert_eq!(f32s(&one), [1.0]);
    assert_eq!(format!("{comm:?}"), "Comm(rank 0 of 1)");
    assert_eq!(
        Comm::new(2, 2, None).unwrap_err().status(),
        Status::InvalidArgument
    );
}

const EXPERTS: &str = r#"{"model_type": "mixtral", "vocab_size": 61, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_local_experts": 4, "max_position_embeddings": 16}"#;

#[test]
fn ranks_share_the_experts_of_a_generator() {
    world(2, |rank, comm| {
        let model = Model::new(EXPERTS, 5).unwrap();
        let mut whole = Generator::prepare(&model, WeightForm::F32).unwrap();
        let mut shared = Generator::share(&model, comm, None).unwrap();
        assert!(shared.info().unwrap().bytes < whole.info().unwrap().bytes);
        let options = GenerateOptions {
            max_tokens: 6,
            ..Default::default()
        };
        let text = whole.generate(&[1, 2, 3], &options).unwrap();
        if rank == 0 {
            assert_eq!(shared.generate(&[1, 2, 3], &options).unwrap(), text);
        } else {
            shared.take_part().unwrap();
        }
    });
}
