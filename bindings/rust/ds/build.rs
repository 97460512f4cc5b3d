//! Lets this package's tests find libds.so where ds-sys found it, and programs of the repository,
//! whose packages run this script too, where `DS_LIB_DIR` says. Programs elsewhere need nothing of
//! this: their loader knows the folder, or LD_LIBRARY_PATH tells it.
use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-env-changed=DEP_DS_LIB_DIR");
    println!("cargo:rerun-if-env-changed=DS_LIB_DIR");
    if let Ok(folder) = env::var("DEP_DS_LIB_DIR").or_else(|_| env::var("DS_LIB_DIR")) {
        let folder = Path::new(&folder)
            .canonicalize()
            .unwrap_or_else(|_| folder.clone().into());
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
    }
}
