//! Runs the examples as a reader would, with small settings.
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use ds::json::Value;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let folder = std::env::temp_dir().join(format!("ds-example-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Scratch(folder)
    }
    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
    fn book(&self) -> String {
        let path = self.path("book.txt");
        let line = "The quick brown fox jumps over the lazy dog while it rains in the valley. ";
        std::fs::write(&path, line.repeat(80)).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Runs a program to its end and gives what it prints.
fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {told}");
    String::from_utf8(output.stdout).unwrap()
}

/// The losses of lines such as `step 10  loss 4.5`.
fn losses(text: &str) -> Vec<f64> {
    let after = |line: &str| {
        line.split_once("loss ")
            .map(|(_, loss)| loss.parse().unwrap())
    };
    text.lines().filter_map(after).collect()
}

#[test]
fn train() {
    let scratch = Scratch::new("train");
    let text = run(
        env!("CARGO_BIN_EXE_train"),
        &[&scratch.book(), "30", &scratch.path("run")],
    );
    let losses = losses(&text);
    assert_eq!(losses.len(), 3);
    assert!(losses[2] < losses[0], "{text}");
    ds::checkpoint::verify(scratch.path("run"), Some("global_step30")).unwrap();
}

#[test]
fn resume() {
    let scratch = Scratch::new("resume");
    let (book, folder) = (scratch.book(), scratch.path("run"));
    run(env!("CARGO_BIN_EXE_train"), &[&book, "20", &folder]);
    let text = run(env!("CARGO_BIN_EXE_resume"), &[&folder, &book, "5"]);
    let (first, written) = text.split_once('\n').unwrap();
    assert_eq!(first, "goes on after step 20");
    assert!(written.chars().count() > 20, "{text}");
    assert_eq!(written.matches("together: \"").count(), 2, "{text}");
    ds::checkpoint::verify(&folder, Some("global_step25")).unwrap();
}

/// What the first of several processes prints, started as torchrun starts them.
fn run_ranks(size: usize, program: &str, arguments: &[&str]) -> String {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let mut ranks = Vec::new();
    for rank in 0..size {
        let child = Command::new(program)
            .args(arguments)
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        ranks.push(child);
    }
    let outputs: Vec<_> = ranks
        .into_iter()
        .map(|child| child.wait_with_output().unwrap())
        .collect();
    assert!(outputs.iter().all(|output| output.status.success()));
    String::from_utf8(outputs[0].stdout.clone()).unwrap()
}

#[test]
fn zero3_goes_on_with_another_number_of_processes() {
    let scratch = Scratch::new("zero3");
    let (book, folder) = (scratch.book(), scratch.path("run"));
    let program = env!("CARGO_BIN_EXE_zero3");
    let first = run_ranks(3, program, &[&book, "10", &folder]);
    assert!(
        first.starts_with("after step 0: 3 processes, ZeRO stage 3"),
        "{first}"
    );
    let second = run_ranks(2, program, &[&book, "20", &folder]);
    assert!(second.starts_with("after step 10: 2 processes"), "{second}");
    let last = run(program, &[&book, "30", &folder]);
    assert!(last.starts_with("after step 20: 1 processes"), "{last}");
    let alone = run(program, &[&book, "30", &scratch.path("alone")]);
    // The same samples make the same steps; the sums of ranks are rounded in another order.
    assert!(
        (losses(&last)[0] - losses(&alone)[2]).abs() < 2e-3,
        "{last}{alone}"
    );
}

/// The code of the documentation is that of the examples, which the tests here run.
#[test]
fn the_page_shows_code_that_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/rust.md")).unwrap();
    let plain = |text: &str| text.lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let sources: Vec<String> = (root.join("src/bin").read_dir().unwrap())
        .map(|entry| plain(&std::fs::read_to_string(entry.unwrap().path()).unwrap()))
        .collect();
    let blocks: Vec<&str> = page.split("```rust\n").skip(1).collect();
    assert!(blocks.len() >= 6, "{} blocks", blocks.len());
    for block in blocks {
        let code = plain(block.split("```").next().unwrap());
        let found = sources.iter().any(|source| source.contains(code.trim()));
        assert!(found, "no example has this code of docs/rust.md:\n{code}");
    }
}

#[test]
fn own_gradients() {
    let scratch = Scratch::new("own");
    let text = run(
        env!("CARGO_BIN_EXE_own_gradients"),
        &["300", &scratch.path("run")],
    );
    assert!(losses(&text)[2] < 0.001, "{text}");
    let model = ds::Model::open(scratch.path("run")).unwrap();
    assert_eq!(model.parameter_index("out.bias").unwrap(), 3);
}

#[test]
fn lora() {
    let scratch = Scratch::new("lora");
    let (lora, base, adapter) = (
        env!("CARGO_BIN_EXE_lora"),
        scratch.path("base"),
        scratch.path("adapter"),
    );
    run(lora, &["--make-base", &base]);
    let text = run(lora, &[&base, &scratch.book(), "30", &adapter]);
    let losses = losses(&text);
    assert!(losses[2] < losses[0], "{text}");
    let mut model = ds::Model::open(&base).unwrap();
    model.load_adapter(&adapter).unwrap();
    assert!(model.info().unwrap().trainable_elements < model.info().unwrap().elements / 4);
}

/// A running service, ended with the test.
struct Service {
    child: Child,
    output: BufReader<ChildStdout>,
    address: String,
}

impl Service {
    fn start(book: &str, folder: &str) -> Service {
        let mut child = Command::new(env!("CARGO_BIN_EXE_service"))
            .args([book, folder])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on ")
            .expect("it says where")
            .to_string();
        Service {
            child,
            output,
            address,
        }
    }

    fn ask(&self, request: &str) -> (String, Value) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split_whitespace().nth(1).unwrap().to_string();
        (status, Value::parse(body).unwrap())
    }

    /// Waits until the training has come so far.
    fn until(&self, step: i64) -> Value {
        loop {
            let (status, document) = self.ask("GET /status");
            assert_eq!(status, "200");
            if document["step"].as_i64() >= Some(step) {
                return document;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn end(mut self) -> String {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(self.child.wait().unwrap().success());
        rest
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill(); // when a test has failed; it has ended otherwise
        let _ = self.child.wait();
    }
}

#[test]
fn service() {
    let scratch = Scratch::new("service");
    let (book, folder) = (scratch.book(), scratch.path("run"));
    let service = Service::start(&book, &folder);
    let early = service.until(1)["loss"].as_f64().unwrap();
    // Ten at once are answered while it trains.
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let (status, document) = service.ask("GET /generate?prompt=The+quick%20&tokens=16");
                assert_eq!(status, "200", "{document}");
                assert!(!document["text"].as_str().unwrap().is_empty());
                assert!(document["step"].as_i64().is_some());
            });
        }
    });
    let later = service.until(30);
    assert!(later["loss"].as_f64().unwrap() < early, "{later}");
    assert!(later["snapshot"].as_i64() >= Some(20), "{later}");
    assert_eq!(service.ask("GET /nothing").0, "404");
    assert_eq!(service.ask("GET /generate?tokens=many").0, "400");
    assert_eq!(
        service.ask("POST /stop").1["stopping"].as_bool(),
        Some(true)
    );
    let told = service.end();
    assert!(told.contains("saved step "), "{told}");

    // It goes on where it was, and SIGTERM ends it as well.
    let service = Service::start(&book, &folder);
    let saved = told
        .split_whitespace()
        .nth(2)
        .unwrap()
        .parse::<i64>()
        .unwrap();
    assert!(service.until(1)["step"].as_i64() > Some(saved));
    run("kill", &["-TERM", &service.child.id().to_string()]);
    assert!(service.end().contains("saved step "));
}
