//! Parameters of programs that compute their own gradients.
use std::ffi::CString;

use ds_sys as sys;

use crate::element::DType;
use crate::error::Result;
use crate::ffi::{c_text, pointer, sized, to_i64};
use crate::tensor::Tensor;

/// One parameter of [`Model::from_parameters`](crate::Model::from_parameters).
///
/// ```
/// use ds::{Model, Parameter, Tensor};
/// let start = Tensor::from_vec(vec![0.5f32; 6], &[2, 3])?;
/// let model = Model::from_parameters(vec![
///     Parameter::new("weight")?.value(&start),
///     Parameter::new("bias")?.shape(&[2]).no_decay(), // zeros
/// ])?;
/// assert_eq!(model.info()?.elements, 8);
/// # Ok::<(), ds::Error>(())
/// ```
pub struct Parameter<'a> {
    name: CString,
    shape: Option<Vec<i64>>,
    value: Option<&'a Tensor<'a>>,
    pub(crate) lent: Option<Tensor<'static>>,
    group: Option<CString>,
    alias: Option<CString>,
    dtype: Option<DType>,
    frozen: bool,
    no_decay: bool,
    expert: Option<i64>,
}

impl<'a> Parameter<'a> {
    /// A parameter with a name unlike all others. It needs a shape, a value or lent memory.
    pub fn new(name: &str) -> Result<Parameter<'a>> {
        Ok(Parameter {
            name: c_text("the name", name)?,
            shape: None,
            value: None,
            lent: None,
            group: None,
            alias: None,
            dtype: None,
            frozen: false,
            no_decay: false,
            expert: None,
        })
    }
    /// Its sizes; without a value it begins with zeros.
    pub fn shape(mut self, shape: &[usize]) -> Self {
        self.shape = Some(shape.iter().map(|&size| to_i64(size)).collect());
        self
    }
    /// Its first value, which is copied.
    pub fn value(mut self, value: &'a Tensor<'a>) -> Self {
        self.value = Some(value);
        self
    }
    /// Memory that holds its first value and receives every new one, in its own type. The model
    /// keeps the tensor; [`Model::lent`](crate::Model::lent) shows it between steps.
    pub fn lend(mut self, memory: Tensor<'static>) -> Self {
        self.lent = Some(memory);
        self
    }
    /// A group of the optimizer's `param_groups`.
    pub fn group(mut self, group: &str) -> Result<Self> {
        self.group = Some(c_text("the group", group)?);
        Ok(self)
    }
    /// Another name of the same tensor (tied weights).
    pub fn alias(mut self, alias: &str) -> Result<Self> {
        self.alias = Some(c_text("the alias", alias)?);
        Ok(self)
    }
    /// Type in which the program holds it; otherwise that of the value, or `f32`.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = Some(dtype);
        self
    }
    /// Never updated; takes no gradient.
    pub fn frozen(mut self) -> Self {
        self.frozen = true;
        self
    }
    /// Weight decay does not apply.
    pub fn no_decay(mut self) -> Self {
        self.no_decay = true;
        self
    }
    /// Index of the expert that it belongs to.
    pub fn expert(mut self, expert: usize) -> Self {
        self.expert = Some(to_i64(expert));
        self
    }

    /// The struct that the call takes; it points into `self`.
    pub(crate) fn raw(&self) -> sys::ds_parameter {
        let value = self.lent.as_ref().or(self.value);
        let sizes = self.shape.as_ref().map_or(0, Vec::len);
        sys::ds_parameter {
            name: self.name.as_ptr(),
            shape: self
                .shape
                .as_ref()
                .map_or(std::ptr::null(), |shape| shape.as_ptr()),
            value: value.map_or(std::ptr::null(), |value| value.raw() as *const _),
            group: pointer(&self.group),
            alias: pointer(&self.alias),
            ndim: i32::try_from(sizes).unwrap_or(i32::MAX),
            dtype: self.dtype.map_or(0, DType::raw),
            lend: self.lent.is_some().into(),
            frozen: self.frozen.into(),
            no_decay: self.no_decay.into(),
            has_expert: self.expert.is_some().into(),
            expert: self.expert.unwrap_or(0),
            ..sized()
        }
    }
}
