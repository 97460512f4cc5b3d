//! What may be asked about a configuration without an engine.
use ds_sys as sys;

use crate::error::Result;
use crate::ffi::{c_option, c_text, pointer, text};

/// Checks a configuration and lists everything that is wrong with it, as JSON with `"accepted"` and
/// `"problems"`. Options are those of `ds_config_check`.
///
/// ```
/// let said = ds::config::check(r#"{"train_micro_batch_size_per_gpu": 1, "optimzer": {}}"#, None)?;
/// let said = ds::json::Value::parse(&said)?;
/// assert_eq!(said["accepted"].as_bool(), Some(false));
/// assert!(said["problems"][0]["path"].as_str() == Some("/optimzer"));
/// # Ok::<(), ds::Error>(())
/// ```
pub fn check(config: &str, options: Option<&str>) -> Result<String> {
    let (config, options) = (
        c_text("the configuration", config)?,
        c_option("options", options)?,
    );
    // SAFETY: reads the texts and gives one.
    text(|out| unsafe { sys::ds_config_check(config.as_ptr(), pointer(&options), out) })
}

/// Every key that a configuration may have, as a JSON Schema (draft 2020-12).
pub fn schema() -> Result<String> {
    // SAFETY: gives a text.
    text(|out| unsafe { sys::ds_config_schema(out) })
}

/// What training would take on each rank of a world that need not be there, as JSON. `model` is a
/// `config.json`, or `{"parameters": N, "layers": L}`; options are those of `ds_plan`.
pub fn plan(model: &str, config: &str, options: Option<&str>) -> Result<String> {
    let (model, config) = (
        c_text("the model", model)?,
        c_text("the configuration", config)?,
    );
    let options = c_option("options", options)?;
    // SAFETY: reads the texts and gives one.
    text(|out| unsafe { sys::ds_plan(model.as_ptr(), config.as_ptr(), pointer(&options), out) })
}
