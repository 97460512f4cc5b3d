//! Tells cargo where libds.so is: in the folder `DS_LIB_DIR`, else where pkg-config says.
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-env-changed=DS_LIB_DIR");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    println!("cargo:rerun-if-env-changed=DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        return; // documentation is made without the library
    }
    if let Some(folder) = env::var_os("DS_LIB_DIR") {
        link_from(Path::new(&folder), &["ds".into()]);
        return;
    }
    match ask_pkg_config() {
        Ok((folders, libraries)) => {
            for folder in &folders {
                link_from(folder, &[]);
            }
            for library in &libraries {
                println!("cargo:rustc-link-lib=dylib={library}");
            }
        }
        Err(why) => {
            eprintln!(
                "ds-sys: libds is not found: {why}. Install libds and its pkg-config file, or set \
                 DS_LIB_DIR to the folder that holds libds.so"
            );
            std::process::exit(1);
        }
    }
}

/// Links from a folder, and lets programs that cargo runs find the library there.
fn link_from(folder: &Path, libraries: &[String]) {
    let folder = folder
        .canonicalize()
        .unwrap_or_else(|_| folder.to_path_buf());
    if !folder.join("libds.so").exists() {
        eprintln!(
            "ds-sys: there is no libds.so in {} (from DS_LIB_DIR or pkg-config)",
            folder.display()
        );
        std::process::exit(1);
    }
    println!(
        "cargo:rerun-if-changed={}",
        folder.join("libds.so").display()
    );
    println!("cargo:rustc-link-search=native={}", folder.display());
    for library in libraries {
        println!("cargo:rustc-link-lib=dylib={library}");
    }
    // For this package's tests; build scripts of others read the folder as DEP_DS_LIB_DIR.
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
    println!("cargo:lib_dir={}", folder.display());
    // `cargo test` and `cargo run` look for libraries in folders of build scripts alone; this is
    // what lets tests in documentation start, which take no link arguments.
    if let Err(why) = lend_to_cargo(&folder) {
        println!("cargo:warning=ds-sys: tests in documentation may not find libds.so: {why}");
    }
}

fn lend_to_cargo(folder: &Path) -> std::io::Result<()> {
    let here = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for entry in folder.read_dir()? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("libds.so") {
            let link = here.join(entry.file_name());
            let _ = std::fs::remove_file(&link); // of an earlier build, perhaps
            std::os::unix::fs::symlink(entry.path(), link)?;
        }
    }
    println!("cargo:rustc-link-search=native={}", here.display());
    Ok(())
}

/// Folders and names of the libraries that pkg-config wants for `ds`.
fn ask_pkg_config() -> Result<(Vec<PathBuf>, Vec<String>), String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let wanted = concat!(
        "ds >= ",
        env!("CARGO_PKG_VERSION_MAJOR"),
        ".",
        env!("CARGO_PKG_VERSION_MINOR")
    );
    let output = Command::new(&program)
        .args(["--libs", wanted])
        .output()
        .map_err(|error| format!("{} does not start: {error}", program.to_string_lossy()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("pkg-config says: {}", said.trim()));
    }
    let (mut folders, mut libraries) = (Vec::new(), Vec::new());
    for flag in String::from_utf8_lossy(&output.stdout).split_whitespace() {
        if let Some(folder) = flag.strip_prefix("-L") {
            folders.push(PathBuf::from(folder));
        } else if let Some(library) = flag.strip_prefix("-l") {
            libraries.push(library.to_string());
        }
    }
    Ok((folders, libraries))
}
