//! Every function of the header is used by this crate or left to `ds::sys` for a reason.
use std::collections::BTreeSet;
use std::path::Path;

/// What this crate leaves out on purpose.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "ds_handle_error_message",
        "texts are fetched within the call that failed",
    ),
    (
        "ds_tensor_from_dlpack_legacy",
        "Rust has no code that speaks DLPack before 1.0 alone",
    ),
    ("ds_tensor_to_dlpack_legacy", "the same"),
    (
        "ds_pinned_allocate",
        "memory is that of tensors: Tensor::pinned",
    ),
    ("ds_pinned_free", "the memory goes with its last tensor"),
    ("ds_pinned_contains", "Tensor::is_pinned"),
];

fn text(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The names that follow a marker.
fn names<'t>(text: &'t str, marker: &str) -> BTreeSet<&'t str> {
    let end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let after = text.split(marker).skip(1);
    after
        .map(|rest| &rest[..rest.find(end).unwrap_or(rest.len())])
        .collect()
}

#[test]
fn every_function_is_used_or_left_out_on_purpose() {
    let generated = text("../ds-sys/src/generated.rs");
    let all = names(&generated, "pub fn ");
    assert!(all.len() > 100, "only {} functions are declared", all.len());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut used = BTreeSet::new();
    for entry in folder.read_dir().unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        // Functions that end objects are named in a table.
        for name in names(&source, "sys::ds_")
            .into_iter()
            .chain(names(&source, ": ds_"))
        {
            used.insert(format!("ds_{name}"));
        }
    }
    let left: BTreeSet<&str> = LEFT_OUT.iter().map(|(name, _)| *name).collect();
    for name in all.iter().filter(|name| name.starts_with("ds_")) {
        let (used, left) = (used.contains(*name), left.contains(name));
        assert!(
            used || left,
            "{name} is neither used nor left out on purpose"
        );
        assert!(!(used && left), "{name} is used and listed as left out");
    }
    for name in left {
        assert!(
            all.contains(name),
            "{name} is listed as left out and does not exist"
        );
    }
}

#[test]
fn the_declarations_are_the_library_s_list_of_names() {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/abi/ds.symbols");
    let list = match std::fs::read_to_string(list) {
        Ok(list) => list,
        Err(why) => return eprintln!("skipped: the list is not beside this package: {why}"),
    };
    let generated = text("../ds-sys/src/generated.rs");
    let declared: BTreeSet<&str> = names(&generated, "pub fn ")
        .into_iter()
        .filter(|name| name.starts_with("ds_"))
        .collect();
    let word = |line: &'_ str| line.split_whitespace().next().unwrap_or("").to_string();
    let exported: BTreeSet<String> = list
        .lines()
        .map(word)
        .filter(|name| name.starts_with("ds_"))
        .collect();
    let exported: BTreeSet<&str> = exported.iter().map(String::as_str).collect();
    assert_eq!(declared, exported);
}
