//! Lets this package's tests and examples find libds.so where ds-sys found it.
fn main() {
    println!("cargo:rerun-if-env-changed=DEP_DS_LIB_DIR");
    if let Ok(folder) = std::env::var("DEP_DS_LIB_DIR") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
    }
}
