//! The functions, structs and constants of `ds.h`, the C interface of libds, as they are there.
//!
//! Everything is generated from the header by bindgen and documented by the header's own comments.
//! Programs use the crate `ds`, which is safe; this one is for what that leaves out.
//!
//! The library is looked for in the folder `DS_LIB_DIR` at build time, else pkg-config is asked for
//! `ds`. Handles are numbers that the library checks: using one that has ended is an error, not
//! undefined behaviour. What can go wrong are the pointers to memory.
#![allow(non_camel_case_types)]
#![allow(
    rustdoc::broken_intra_doc_links,
    rustdoc::invalid_html_tags,
    rustdoc::bare_urls
)]
#![allow(clippy::all)]
#![no_std]

extern crate std;

include!("generated.rs");
