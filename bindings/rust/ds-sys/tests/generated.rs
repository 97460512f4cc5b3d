//! The declarations are those of the header: bindgen gives the same again, without a warning.
use std::path::{Path, PathBuf};
use std::process::Command;

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Why the declarations cannot be made here.
fn obstacle() -> Option<String> {
    if !package().join("../../../include/ds.h").exists() {
        return Some("the header is not beside this package".into());
    }
    match Command::new("bindgen").arg("--version").output() {
        Err(error) => Some(format!("bindgen does not start: {error}")),
        Ok(output) => {
            let version = String::from_utf8_lossy(&output.stdout).trim().to_string();
            let fits = version.starts_with("bindgen 0.60.");
            (!fits).then(|| format!("this is {version}, and 0.60 made the declarations"))
        }
    }
}

/// The text without what formatters decide: blanks, and commas before a closing bracket.
fn tokens(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars().filter(|c| !c.is_whitespace()) {
        if matches!(c, ')' | ']' | '}' | '>') && out.ends_with(',') {
            out.pop();
        }
        out.push(c);
    }
    out
}

#[test]
fn the_header_gives_the_committed_declarations_without_a_warning() {
    if let Some(why) = obstacle() {
        eprintln!("skipped: {why}");
        return;
    }
    let fresh = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("generated.rs");
    // It fails when bindgen or clang says anything.
    let done = Command::new(package().join("../generate"))
        .arg(&fresh)
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let fresh = std::fs::read_to_string(fresh).unwrap();
    let committed = include_str!("../src/generated.rs");
    if tokens(&fresh) != tokens(committed) {
        let other = fresh.lines().zip(committed.lines()).find(|(a, b)| a != b);
        panic!("the header has changed: run bindings/rust/generate; first difference: {other:?}");
    }
}

#[test]
fn formatting_alone_makes_no_difference_and_a_constant_does() {
    assert_eq!(
        tokens("pub fn f(\n  a: i32,\n) -> i32;"),
        tokens("pub fn f (a : i32) -> i32 ;")
    );
    assert_ne!(tokens("const A: i32 = 1;"), tokens("const A: i32 = 2;"));
}
