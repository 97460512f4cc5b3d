//! A service that trains in the background while it answers: service FILE FOLDER [PORT]
//!
//!   GET /status                           how the training goes, as JSON
//!   GET /generate?prompt=TEXT&tokens=N    text of the newest snapshot of the model, as JSON
//!   POST /stop                            ends the service, as SIGTERM and SIGINT do
//!
//! It trains on FILE until it is told to stop, then finishes the step, saves into FOLDER and ends; from
//! there it goes on at the next start. Requests never wait for a step: they use a copy of the weights,
//! which the training thread renews now and then.
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ds::json::{object, Value};
use ds::{Dataset, Engine, GenerateOptions, Generator, Model, Tokenizer, WeightForm};

const SHAPE: &str = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 128,
                        "n_embd": 64, "n_layer": 2, "n_head": 4}"#;
const CONFIG: &str = r#"{"train_micro_batch_size_per_gpu": 4,
                         "optimizer": {"type": "AdamW", "params": {"lr": 0.003}}}"#;
/// Steps between two snapshots.
const SNAPSHOT_EVERY: u64 = 10;
/// Bytes of a request's head at most.
const MOST_HEAD: usize = 16 * 1024;

/// Set by a signal or a request: everybody ends.
static STOP: AtomicBool = AtomicBool::new(false);

/// Weights of a moment, ready to generate.
struct Snapshot {
    step: u64,
    generator: Mutex<Generator<'static>>,
}

/// What the training thread tells the others.
#[derive(Default)]
struct Board {
    step: u64,
    loss: f64,
    tokens_per_second: f64,
    snapshot: Option<Arc<Snapshot>>,
}

type Shared = Mutex<Board>;

fn snapshot(engine: &Engine, step: u64) -> ds::Result<Arc<Snapshot>> {
    let generator = Generator::prepare(engine.model(), WeightForm::F32)?;
    Ok(Arc::new(Snapshot {
        step,
        generator: Mutex::new(generator),
    }))
}

/// Trains until it is told to stop, then saves.
fn train(engine: &mut Engine, folder: &Path, board: &Shared) -> ds::Result<()> {
    let fresh = snapshot(engine, engine.info()?.step)?;
    board.lock().unwrap().snapshot = Some(fresh);
    while !STOP.load(Ordering::Relaxed) {
        let report = engine.train_batch()?;
        let fresh = match report.step % SNAPSHOT_EVERY {
            0 => Some(snapshot(engine, report.step)?), // between two steps, outside the lock
            _ => None,
        };
        let mut board = board.lock().unwrap();
        board.step = report.step;
        board.loss = report.loss;
        board.tokens_per_second = report.tokens as f64 / report.seconds;
        board.snapshot = fresh.or_else(|| board.snapshot.take());
    }
    engine.save(folder, None)?;
    println!(
        "saved step {} into {}",
        engine.info()?.step,
        folder.display()
    );
    Ok(())
}

/// One answer: a status line and a document.
type Answer = (&'static str, Value);

fn refusal(status: &'static str, text: &str) -> Answer {
    (status, object([("error", text.into())]))
}

fn status(board: &Shared) -> Answer {
    let board = board.lock().unwrap();
    let snapshot = board
        .snapshot
        .as_ref()
        .map_or(Value::Null, |s| (s.step as i64).into());
    let document = object([
        ("step", Value::from(board.step as i64)),
        ("loss", board.loss.into()),
        ("tokens_per_second", board.tokens_per_second.into()),
        ("snapshot", snapshot),
    ]);
    ("200 OK", document)
}

fn generate(board: &Shared, query: &str) -> Result<Answer, Box<dyn Error>> {
    let (mut prompt, mut tokens) = (String::new(), 32);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("prompt", text)) => prompt = decoded(text),
            Some(("tokens", count)) => tokens = count.parse::<usize>()?.min(512),
            _ => return Ok(refusal("400 Bad Request", "prompt and tokens are known")),
        }
    }
    let snapshot = board
        .lock()
        .unwrap()
        .snapshot
        .clone()
        .ok_or("there is no snapshot yet")?;
    let tokenizer = Tokenizer::bytes()?;
    let ids = tokenizer.encode(if prompt.is_empty() { " " } else { &prompt }, false)?;
    let options = GenerateOptions {
        max_tokens: tokens,
        temperature: 0.8,
        ..Default::default()
    };
    let new = snapshot
        .generator
        .lock()
        .unwrap()
        .generate(&ids, &options)?;
    let text = tokenizer.decode(&new, true)?;
    let document = object([
        ("text", Value::from(text)),
        ("step", (snapshot.step as i64).into()),
    ]);
    Ok(("200 OK", document))
}

/// Text of a query: `+` is a blank, `%41` a byte.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = hex.and_then(|two| u8::from_str_radix(two, 16).ok());
        match (first, byte) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = tail;
            }
            (other, _) => {
                bytes.push(*other);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads the head of a request: method and target.
fn read_head(stream: &mut TcpStream) -> std::io::Result<Option<(String, String)>> {
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let count = stream.read(&mut part)?;
        if count == 0 || head.len() + count > MOST_HEAD {
            return Ok(None);
        }
        head.extend_from_slice(&part[..count]);
    }
    let text = String::from_utf8_lossy(&head);
    let mut words = text.split_whitespace().map(String::from);
    Ok(words.next().zip(words.next()))
}

fn answer(stream: &mut TcpStream, board: &Shared) -> std::io::Result<()> {
    stream.set_nonblocking(false)?; // it may have the listener's setting
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let (method, target) = match read_head(stream)? {
        Some(head) => head,
        None => return Ok(()),
    };
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let (status, document) = match (method.as_str(), path) {
        ("GET", "/status") => status(board),
        ("GET", "/generate") => generate(board, query)
            .unwrap_or_else(|error| refusal("400 Bad Request", &error.to_string())),
        ("POST", "/stop") => {
            STOP.store(true, Ordering::Relaxed);
            ("200 OK", object([("stopping", Value::from(true))]))
        }
        _ => refusal(
            "404 Not Found",
            "GET /status, GET /generate and POST /stop are known",
        ),
    };
    let body = document.to_string();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// Answers requests, each on a thread of its own, until everybody ends.
fn serve(listener: &TcpListener, board: &Shared) -> std::io::Result<()> {
    listener.set_nonblocking(true)?; // so that the end is seen
    std::thread::scope(|scope| {
        while !STOP.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((mut stream, _)) => {
                    scope.spawn(move || {
                        if let Err(error) = answer(&mut stream, board) {
                            eprintln!("a request ended early: {error}");
                        }
                    });
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(()) // the scope waits for the requests that are still answered
    })
}

extern "C" fn on_signal(_: i32) {
    STOP.store(true, Ordering::Relaxed);
}

extern "C" {
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (file, folder) = match arguments.as_slice() {
        [_, file, folder] | [_, file, folder, _] => (file, Path::new(folder)),
        _ => return Err("usage: service FILE FOLDER [PORT]".into()),
    };
    let port: u16 = arguments.get(3).map_or(Ok(0), |port| port.parse())?;
    // SAFETY: the handler does nothing but set a flag. 2 is SIGINT, 15 SIGTERM.
    unsafe {
        signal(2, on_signal);
        signal(15, on_signal);
    }
    let mut engine = Engine::new(CONFIG, Model::new(SHAPE, 1)?)?;
    engine.set_dataset(Some(&Dataset::text(file, 64, None)?))?;
    if folder.join("latest").exists() {
        engine.load(folder, None)?; // the step, the data and the optimizer go on where they were
    }
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("listening on {}", listener.local_addr()?);
    let board = Shared::default();
    std::thread::scope(|scope| {
        let trainer = scope.spawn(|| {
            let result = train(&mut engine, folder, &board);
            STOP.store(true, Ordering::Relaxed); // without training there is no service
            result
        });
        let served = serve(&listener, &board);
        STOP.store(true, Ordering::Relaxed);
        trainer
            .join()
            .expect("the training thread does not panic")?;
        Ok(served?)
    })
}
