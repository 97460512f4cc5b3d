//! Threads, tasks and many objects: texts of errors, two engines at once, 10,000 cycles.
mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{mpsc, Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use common::{own_model, trainer, weights, Scratch, CONFIG, SGD};
use ds::{Engine, Model, Status, Tensor};

/// Bytes of this process in memory.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<usize>()
        .unwrap()
        * 4096
}

#[test]
fn objects_that_come_and_go_leave_nothing() {
    let gradient = Tensor::from_vec(vec![1.0f32; 2], &[2]).unwrap();
    let heard = Arc::new(AtomicUsize::new(0));
    let cycle = |count: usize| {
        for _ in 0..count {
            let tensor = Tensor::from_vec(vec![0u8; 1024], &[1024]).unwrap();
            assert_eq!(tensor.elements().unwrap(), 1024);
            let mut engine = Engine::new(SGD, own_model()).unwrap();
            let counter = Arc::clone(&heard);
            engine
                .set_progress(move |_| {
                    counter.fetch_add(1, Ordering::Relaxed);
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
            engine.add_gradients_of(&[1], &[&gradient]).unwrap();
            engine.step().unwrap();
            assert!(Model::new("{}", 0).is_err());
        }
    };
    cycle(500); // pools and caches fill
    let before = resident();
    let times = cycles();
    cycle(times);
    let grown = resident().saturating_sub(before);
    assert!(grown < MOST, "{grown} bytes more after {times} engines");
    assert_eq!(Arc::strong_count(&heard), 1, "every closure is gone");
}

#[test]
fn callbacks_leave_nothing() {
    let scratch = Scratch::new();
    let mut engine = trainer(&scratch, CONFIG);
    let model = Model::new(common::SHAPE, 1).unwrap();
    let mut generator = ds::Generator::new(&model).unwrap();
    let one = ds::GenerateOptions {
        max_tokens: 1,
        ..Default::default()
    };
    let kept = Arc::new(());
    let mut cycle = |count: usize| {
        for _ in 0..count {
            let copy = Arc::clone(&kept);
            engine
                .set_progress(move |_| (drop(Arc::clone(&copy)), stop()).1)
                .unwrap();
            let heard = engine.train_batch().unwrap_err();
            assert_eq!(heard.status(), Status::Callback);
            let copy = Arc::clone(&kept);
            let some = generator.generate_with(&[1], &one, |_| (drop(Arc::clone(&copy)), stop()).1);
            assert_eq!(some.unwrap().len(), 1);
        }
    };
    cycle(300);
    let before = resident();
    let times = cycles();
    cycle(times);
    let grown = resident().saturating_sub(before);
    assert!(
        grown < MOST,
        "{grown} bytes more after twice {times} callbacks"
    );
    engine.clear_progress().unwrap();
    assert_eq!(Arc::strong_count(&kept), 1);
}

/// How often something is repeated.
fn cycles() -> usize {
    if std::env::var_os("DS_TEST_FULL").is_some() {
        10_000
    } else {
        3_000
    }
}

/// So many bytes a process may have more after that.
const MOST: usize = 4 << 20;

fn stop() -> std::ops::ControlFlow<()> {
    std::ops::ControlFlow::Break(())
}

#[test]
fn two_threads_train_at_once() {
    let scratch = Scratch::new();
    let alone = {
        let mut engine = trainer(&scratch, CONFIG);
        for report in engine.steps(20) {
            report.unwrap();
        }
        weights(engine.model())
    };
    let begin = Instant::now();
    let spans: Vec<_> = std::thread::scope(|scope| {
        let train = || {
            let mut engine = trainer(&scratch, CONFIG);
            let from = begin.elapsed();
            for report in engine.steps(20) {
                report.unwrap();
            }
            (from, begin.elapsed(), weights(engine.model()))
        };
        let threads = [scope.spawn(train), scope.spawn(train)];
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    for (from, to, weights) in spans {
        println!("steps from {from:?} to {to:?}"); // told, not judged: machines are busy
        assert_eq!(weights, alone);
    }
}

/// A call that fails with a text that names `number`.
fn fail(number: usize) -> ds::Error {
    let shape =
        format!(r#"{{"model_type": "gpt2", "n_embd": 8, "n_head": 3, "n_layer_{number}": 1}}"#);
    let name = format!("no-such-parameter-{number}");
    match Model::new(&shape, 1) {
        Err(error) => error,
        Ok(model) => model.parameter_index(&name).unwrap_err(),
    }
}

#[test]
fn texts_of_errors_are_those_of_the_call() {
    let folder = std::env::temp_dir();
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let folder = &folder;
            scope.spawn(move || {
                for round in 0..20 {
                    let missing = folder.join(format!("ds-missing-{thread}-{round}"));
                    let error = Model::open(&missing).unwrap_err();
                    let name = missing.file_name().unwrap().to_str().unwrap();
                    assert!(error.message().contains(name), "{error}");
                }
            });
        }
    });
    assert_eq!(fail(1).status(), Status::Config);
}

/// A task that fails a call, goes to sleep, perhaps wakes on another thread, and then reads.
struct FailingTask {
    number: usize,
    error: Option<ds::Error>,
    wrong: Arc<AtomicUsize>,
    rounds: usize,
}

impl Future for FailingTask {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let name = format!("ds-missing-task-{}", self.number);
        if let Some(error) = self.error.take() {
            if !error.message().contains(&name) {
                self.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
        if self.rounds == 0 {
            return Poll::Ready(());
        }
        self.rounds -= 1;
        self.error = Some(Model::open(std::env::temp_dir().join(&name)).unwrap_err());
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A task of the executor below: it puts itself into the queue when it is woken.
struct Task {
    future: Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>,
    queue: Mutex<mpsc::Sender<Arc<Task>>>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let queue = self.queue.lock().unwrap().clone();
        let _ = queue.send(self);
    }
}

#[test]
fn interleaved_tasks_read_their_own_texts() {
    let wrong = Arc::new(AtomicUsize::new(0));
    let ended = Arc::new(AtomicUsize::new(0));
    let threads_of_ends = Mutex::new(std::collections::HashSet::new());
    let (sender, receiver) = mpsc::channel::<Arc<Task>>();
    let receiver = Mutex::new(receiver);
    const TASKS: usize = 100;
    for number in 0..TASKS {
        let task = FailingTask {
            number,
            error: None,
            wrong: Arc::clone(&wrong),
            rounds: 20,
        };
        let future: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        let task = Task {
            future: Mutex::new(Some(future)),
            queue: Mutex::new(sender.clone()),
        };
        sender.send(Arc::new(task)).unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while ended.load(Ordering::Relaxed) < TASKS {
                    let next = receiver.lock().unwrap().try_recv();
                    let task = match next {
                        Ok(task) => task,
                        Err(_) => {
                            std::thread::yield_now();
                            continue;
                        }
                    };
                    threads_of_ends
                        .lock()
                        .unwrap()
                        .insert(std::thread::current().id());
                    let waker = Waker::from(Arc::clone(&task));
                    let mut slot = task.future.lock().unwrap();
                    let mut future = slot.take().unwrap();
                    if future
                        .as_mut()
                        .poll(&mut Context::from_waker(&waker))
                        .is_pending()
                    {
                        *slot = Some(future);
                    } else {
                        ended.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert!(
        threads_of_ends.lock().unwrap().len() > 1,
        "tasks went from thread to thread"
    );
}
