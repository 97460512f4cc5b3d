//! Several prompts that a generator continues together.
use std::os::raw::c_void;
use std::ptr;

use ds_sys as sys;

use crate::error::{Result, Status};
use crate::ffi::{make, sized, to_i64, to_usize, Handle};
use crate::generator::{GenerateOptions, Generator};
use crate::panics::PanicSlot;
use crate::tensor::Tensor;

/// What a closure of [`Generator::generate_batch_with`] wants after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextReply {
    /// This text goes on.
    GoOn,
    /// This text is complete with the token; the others go on.
    EndText,
    /// All texts end here.
    EndAll,
}

impl TextReply {
    fn raw(self) -> sys::ds_text_reply {
        match self {
            TextReply::GoOn => sys::DS_TEXT_GOES_ON,
            TextReply::EndText => sys::DS_TEXT_ENDS,
            TextReply::EndAll => sys::DS_TEXTS_END,
        }
    }
}

/// What a callback for tokens needs while a call runs.
struct OnToken<F> {
    callback: F,
    panic: PanicSlot,
}

unsafe extern "C" fn on_token<F: FnMut(usize, i32) -> TextReply>(
    user_data: *mut c_void,
    text: i64,
    token: i32,
) -> sys::ds_text_reply {
    // SAFETY: it is that of the call below, which runs on this thread.
    let state = &mut *user_data.cast::<OnToken<F>>();
    let callback = &mut state.callback;
    let reply = state.panic.run(|| callback(to_usize(text), token));
    reply.unwrap_or(TextReply::EndAll).raw()
}

/// The function for the library, of a closure whose type has no name.
fn caller<F: FnMut(usize, i32) -> TextReply>(_: &OnToken<F>) -> sys::ds_text_token_fn {
    Some(on_token::<F>)
}

/// Calls `ds_generator_generate_batch`.
///
/// # Safety
/// `on_token` may be called with `user_data` until the end of the call.
unsafe fn generate_batch<P: AsRef<[i32]>>(
    generator: *mut sys::ds_generator,
    prompts: &[P],
    options: &GenerateOptions,
    at_once: usize,
    on_token: sys::ds_text_token_fn,
    user_data: *mut c_void,
) -> Result<Vec<Vec<i32>>> {
    let mut ids = Vec::new();
    let mut counts = Vec::with_capacity(prompts.len());
    for prompt in prompts {
        ids.extend_from_slice(prompt.as_ref());
        counts.push(to_i64(prompt.as_ref().len()));
    }
    let ids = Tensor::from_slice(&ids, &[ids.len()])?;
    let counts = Tensor::from_slice(&counts, &[counts.len()])?;
    let given = sys::ds_prompts {
        ids: ids.raw(),
        counts: counts.raw(),
        at_once: to_i64(at_once),
        ..sized()
    };
    let options = options.raw();
    let mut each = ptr::null_mut();
    let all = make(|out| {
        sys::ds_generator_generate_batch(
            generator, &given, &options, on_token, user_data, out, &mut each,
        )
    })?;
    let counts: Vec<i64> = Tensor::of(Handle::own(each)?).to_vec()?;
    let tokens: Vec<i32> = Tensor::of(all).to_vec()?;
    let mut rest = tokens.as_slice();
    let texts = counts.iter().map(|&count| {
        let (text, after) = rest.split_at(to_usize(count).min(rest.len()));
        rest = after;
        text.to_vec()
    });
    Ok(texts.collect())
}

impl Generator<'_> {
    /// Continues several prompts together, of which at most `at_once` (0: 16) go through the model at
    /// a time; where one text ends the next prompt takes its place. Text `i` has the seed
    /// `options.seed + i`; on a CPU with `at_once` up to 16 it is that of [`Generator::generate`], bit
    /// for bit.
    ///
    /// ```
    /// # let config = r#"{"model_type": "gpt2", "vocab_size": 256, "n_positions": 32, "n_embd": 16,
    /// #                  "n_layer": 1, "n_head": 2}"#;
    /// # let model = ds::Model::new(config, 1)?;
    /// # let mut generator = ds::Generator::new(&model)?;
    /// let options = ds::GenerateOptions { max_tokens: 5, ..Default::default() };
    /// let texts = generator.generate_batch(&[vec![72, 105], vec![7]], &options, 0)?;
    /// assert_eq!(texts[1], generator.generate(&[7], &options)?);
    /// # Ok::<(), ds::Error>(())
    /// ```
    pub fn generate_batch<P: AsRef<[i32]>>(
        &mut self,
        prompts: &[P],
        options: &GenerateOptions,
        at_once: usize,
    ) -> Result<Vec<Vec<i32>>> {
        // SAFETY: nothing is called back.
        unsafe { generate_batch(self.raw(), prompts, options, at_once, None, ptr::null_mut()) }
    }

    /// The same with a closure that gets each token at once, and the index of its prompt. With
    /// [`TextReply::EndAll`] the result is what all texts have by then, which is no error. A panic of
    /// the closure goes on after the call.
    pub fn generate_batch_with<P, F>(
        &mut self,
        prompts: &[P],
        options: &GenerateOptions,
        at_once: usize,
        mut callback: F,
    ) -> Result<Vec<Vec<i32>>>
    where
        P: AsRef<[i32]>,
        F: FnMut(usize, i32) -> TextReply,
    {
        let (mut heard, mut ended) = (vec![Vec::new(); prompts.len()], false);
        let mut state = OnToken {
            callback: |text: usize, token| {
                heard[text].push(token);
                let reply = callback(text, token);
                ended = reply == TextReply::EndAll;
                reply
            },
            panic: PanicSlot::default(),
        };
        let each = caller(&state);
        let user_data = (&mut state as *mut OnToken<_>).cast();
        // SAFETY: the state lives until the end of the call.
        let result =
            unsafe { generate_batch(self.raw(), prompts, options, at_once, each, user_data) };
        state.panic.resume();
        match result {
            Err(error) if ended && error.status() == Status::Callback => Ok(heard),
            result => result,
        }
    }
}
