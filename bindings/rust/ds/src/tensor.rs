//! Numbers with shape and type, in the library's memory or the caller's.
use std::fmt;
use std::marker::PhantomData;
use std::mem::size_of;
use std::ops::Deref;
use std::os::raw::c_void;
use std::ptr::{self, NonNull};

use ds_sys as sys;

use crate::element::{DType, Element};
use crate::error::{check, Error, Result, Status};
use crate::ffi::{c_enum, describe, make, to_i64, to_usize, Handle};

c_enum! {
    /// A kind of device.
    DeviceKind {
        /// The host's memory.
        Cpu = DS_DEVICE_CPU,
        /// A GPU.
        Cuda = DS_DEVICE_CUDA,
    }
}

/// Where numbers lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// What kind of device.
    pub kind: DeviceKind,
    /// Which of that kind, from 0.
    pub index: i32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.write_str("cpu"),
            DeviceKind::Cuda => write!(f, "cuda:{}", self.index),
            DeviceKind::Unknown => f.write_str("unknown device"),
        }
    }
}

/// What a tensor is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Sizes.
    pub shape: Vec<usize>,
    /// Steps from one element to the next of each dimension, in elements.
    pub strides: Vec<usize>,
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub elements: usize,
    /// Bytes of all elements, packed.
    pub bytes: usize,
    /// Where it lies.
    pub device: Device,
    /// It must not be written.
    pub read_only: bool,
    /// Packed row-major.
    pub contiguous: bool,
}

/// Numbers with shape and type.
///
/// `Tensor<'static>` owns what it shows: the library's memory ([`Tensor::zeros`]) or a vector that it
/// took over ([`Tensor::from_vec`]). With a shorter lifetime it writes to memory that is borrowed
/// exclusively: a slice ([`Tensor::from_slice_mut`]) or a model's or an engine's own memory. What
/// borrows to read is a [`TensorRef`]. Element access through slices is Rust's usual kind: no two
/// tensors that can be written show the same element.
///
/// ```
/// use ds::Tensor;
/// let mut sums = vec![0.0f32; 6];
/// let address = sums.as_ptr();
/// let mut view = Tensor::from_slice_mut(&mut sums, &[2, 3])?;
/// view.as_mut_slice::<f32>()?[4] = 1.5; // the caller's memory, no copy
/// assert_eq!(view.as_slice::<f32>()?.as_ptr(), address);
/// drop(view);
/// assert_eq!(sums[4], 1.5);
/// # Ok::<(), ds::Error>(())
/// ```
///
/// A tensor cannot outlive what it borrows:
///
/// ```compile_fail
/// let tensor = {
///     let numbers = vec![1.0f32; 4];
///     ds::Tensor::from_slice(&numbers, &[4]).unwrap()
/// };
/// println!("{:?}", tensor.info());
/// ```
pub struct Tensor<'a> {
    handle: Handle<sys::ds_tensor>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a handle may be used from any thread, one at a time; memory that came with it is of types
// that are Send, and `release` may run on any thread.
unsafe impl Send for Tensor<'_> {}
// SAFETY: calls that only read a tensor may overlap; everything else takes `&mut self`.
unsafe impl Sync for Tensor<'_> {}

/// A tensor that may only be read, over memory that is borrowed.
pub struct TensorRef<'a> {
    // Handed out by `&` alone: memory behind it may be shared with others who read.
    tensor: Tensor<'a>,
}

impl<'a> Deref for TensorRef<'a> {
    type Target = Tensor<'a>;
    fn deref(&self) -> &Tensor<'a> {
        &self.tensor
    }
}
impl<'a> AsRef<Tensor<'a>> for TensorRef<'a> {
    fn as_ref(&self) -> &Tensor<'a> {
        &self.tensor
    }
}
impl<'a> AsRef<Tensor<'a>> for Tensor<'a> {
    fn as_ref(&self) -> &Tensor<'a> {
        self
    }
}
impl fmt::Debug for TensorRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor.fmt(f)
    }
}

/// A shape for the library, which has at most `DS_MAX_DIMS` sizes.
pub(crate) fn dims(shape: &[usize]) -> Result<(Vec<i64>, i32)> {
    let sizes: Vec<i64> = shape.iter().map(|&size| to_i64(size)).collect();
    // More sizes than fit are the library's to refuse, with its text.
    let count = i32::try_from(sizes.len()).unwrap_or(i32::MAX);
    Ok((sizes, count))
}

/// How many elements a shape has.
fn count_of(shape: &[usize]) -> Option<usize> {
    shape
        .iter()
        .try_fold(1usize, |product, &size| product.checked_mul(size))
}

fn fits(shape: &[usize], elements: usize) -> Result<()> {
    if count_of(shape) == Some(elements) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{elements} elements do not fill the shape {shape:?}"
    )))
}

impl Tensor<'static> {
    /// Zeros in the library's memory.
    pub fn zeros<T: Element>(shape: &[usize]) -> Result<Tensor<'static>> {
        Tensor::zeros_of(T::DTYPE, shape)
    }

    /// Zeros of a type that is known at run time only.
    pub fn zeros_of(dtype: DType, shape: &[usize]) -> Result<Tensor<'static>> {
        let (sizes, count) = dims(shape)?;
        // SAFETY: `sizes` has `count` elements.
        let handle =
            make(|out| unsafe { sys::ds_tensor_create(dtype.raw(), sizes.as_ptr(), count, out) })?;
        Ok(Tensor::of(handle))
    }

    /// Zeros in locked memory, in huge pages where it is large: what files are read into and written
    /// from fastest.
    pub fn pinned(dtype: DType, shape: &[usize]) -> Result<Tensor<'static>> {
        let (sizes, count) = dims(shape)?;
        // SAFETY: `sizes` has `count` elements.
        let handle =
            make(|out| unsafe { sys::ds_pinned_tensor(dtype.raw(), sizes.as_ptr(), count, out) })?;
        Ok(Tensor::of(handle))
    }

    /// Takes a vector over, without a copy.
    pub fn from_vec<T: Element>(values: Vec<T>, shape: &[usize]) -> Result<Tensor<'static>> {
        unsafe extern "C" fn release<T>(user_data: *mut c_void) {
            drop(Box::from_raw(user_data.cast::<Vec<T>>()));
        }
        fits(shape, values.len())?;
        let mut values = Box::new(values);
        let data = values.as_mut_ptr().cast();
        let owner = Box::into_raw(values).cast();
        // SAFETY: the memory is the vector's, which lives until `release`.
        let made = unsafe { wrap(data, T::DTYPE, shape, None, Some(release::<T>), owner) };
        if made.is_err() {
            // SAFETY: the library has not taken the vector.
            unsafe { release::<T>(owner) };
        }
        made
    }

    /// A tensor of no dimension.
    pub fn scalar<T: Element>(value: T) -> Result<Tensor<'static>> {
        Tensor::from_vec(vec![value], &[])
    }

    /// Shows memory of the caller's own making, without a copy.
    ///
    /// # Safety
    /// `data`, aligned for elements of `dtype`, must be valid for reads and writes of every element that
    /// `shape` and `strides` (steps in elements; `None`: packed) reach, and nobody else may touch
    /// it, until `release` has run. That happens once, on any thread; it must not call this library.
    /// It does not run when this call fails.
    pub unsafe fn from_raw_parts(
        data: *mut c_void,
        dtype: DType,
        shape: &[usize],
        strides: Option<&[usize]>,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Tensor<'static>> {
        unsafe extern "C" fn run<F: FnOnce()>(user_data: *mut c_void) {
            let release = Box::from_raw(user_data.cast::<F>());
            // A panic has nobody to go to: the hook has told it.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(release));
        }
        fn runner<F: FnOnce()>(_: &F) -> unsafe extern "C" fn(*mut c_void) {
            run::<F>
        }
        if strides.map_or(false, |strides| strides.len() != shape.len()) {
            return Err(Error::invalid("strides are as many as sizes"));
        }
        let end = runner(&release);
        let owner = Box::into_raw(Box::new(release));
        let made = wrap(data, dtype, shape, strides, Some(end), owner.cast());
        if made.is_err() {
            drop(Box::from_raw(owner));
        }
        made
    }

    /// Takes a DLPack 1.x tensor over, without a copy.
    ///
    /// # Safety
    /// `managed` is a valid tensor that nobody else uses; on success the library owns it. `stream` is
    /// null, or for memory of a GPU a `cudaStream_t`.
    pub unsafe fn from_dlpack(
        managed: NonNull<sys::DLManagedTensorVersioned>,
        stream: *mut c_void,
    ) -> Result<Tensor<'static>> {
        let handle = make(|out| sys::ds_tensor_from_dlpack(managed.as_ptr(), stream, out))?;
        Ok(Tensor::of(handle))
    }

    /// Gives the tensor away as DLPack 1.x, without a copy. Whoever gets it calls its `deleter` once.
    pub fn into_dlpack(self) -> Result<NonNull<sys::DLManagedTensorVersioned>> {
        let mut out = ptr::null_mut();
        // SAFETY: the memory stays alive until the deleter runs, and with `self` the last tensor
        // that shows it goes.
        check(unsafe { sys::ds_tensor_to_dlpack(self.handle.raw(), ptr::null_mut(), &mut out) })?;
        NonNull::new(out).ok_or_else(|| Error::new(Status::Internal, "the library gave no tensor"))
    }
}

/// Wraps memory.
///
/// # Safety
/// As [`Tensor::from_raw_parts`].
unsafe fn wrap<'a>(
    data: *mut c_void,
    dtype: DType,
    shape: &[usize],
    strides: Option<&[usize]>,
    release: sys::ds_release_fn,
    user_data: *mut c_void,
) -> Result<Tensor<'a>> {
    let (sizes, count) = dims(shape)?;
    let steps = strides.map(dims).transpose()?;
    let steps = steps
        .as_ref()
        .map_or(ptr::null(), |(steps, _)| steps.as_ptr());
    let handle = make(|out| {
        sys::ds_tensor_from_buffer(
            data,
            dtype.raw(),
            sizes.as_ptr(),
            steps,
            count,
            release,
            user_data,
            out,
        )
    })?;
    Ok(Tensor::of(handle))
}

impl<'a> Tensor<'a> {
    /// A tensor of a handle whose memory may be written for `'a`, by nobody else.
    pub(crate) fn of(handle: Handle<sys::ds_tensor>) -> Tensor<'a> {
        Tensor {
            handle,
            memory: PhantomData,
        }
    }
    pub(crate) fn raw(&self) -> *mut sys::ds_tensor {
        self.handle.raw()
    }

    /// Shows a slice, to be read, without a copy.
    pub fn from_slice<T: Element>(values: &'a [T], shape: &[usize]) -> Result<TensorRef<'a>> {
        fits(shape, values.len())?;
        let data = values.as_ptr() as *mut c_void;
        // SAFETY: nobody writes through a TensorRef, and it does not outlive the slice; the library
        // reads inputs during calls only.
        let tensor = unsafe { wrap(data, T::DTYPE, shape, None, None, ptr::null_mut()) }?;
        Ok(TensorRef { tensor })
    }

    /// Shows a slice, to be read and written, without a copy.
    pub fn from_slice_mut<T: Element>(values: &'a mut [T], shape: &[usize]) -> Result<Tensor<'a>> {
        fits(shape, values.len())?;
        // SAFETY: the slice is borrowed exclusively for as long as the tensor lives.
        unsafe {
            wrap(
                values.as_mut_ptr().cast(),
                T::DTYPE,
                shape,
                None,
                None,
                ptr::null_mut(),
            )
        }
    }

    fn raw_info(&self) -> Result<sys::ds_tensor_info> {
        // SAFETY: fills the struct.
        describe(|out| unsafe { sys::ds_tensor_describe(self.raw(), out) })
    }

    /// Whether the memory is that of [`Tensor::pinned`], locked in its place.
    pub fn is_pinned(&self) -> Result<bool> {
        let mut pinned = 0;
        // SAFETY: writes one number.
        check(unsafe { sys::ds_tensor_is_pinned(self.raw(), &mut pinned) })?;
        Ok(pinned != 0)
    }

    /// Type, shape and place.
    pub fn info(&self) -> Result<TensorInfo> {
        let info = self.raw_info()?;
        let list = |values: &[i64; 8]| -> Vec<usize> {
            values
                .iter()
                .take(info.ndim as usize)
                .map(|&value| to_usize(value))
                .collect()
        };
        Ok(TensorInfo {
            shape: list(&info.shape),
            strides: list(&info.strides),
            dtype: DType::from_raw(info.dtype),
            elements: to_usize(info.elements),
            bytes: to_usize(info.bytes),
            device: Device {
                kind: DeviceKind::from_raw(info.device_kind),
                index: info.device_index,
            },
            read_only: info.read_only != 0,
            contiguous: info.contiguous != 0,
        })
    }

    /// Sizes.
    pub fn shape(&self) -> Result<Vec<usize>> {
        Ok(self.info()?.shape)
    }
    /// Element type.
    pub fn dtype(&self) -> Result<DType> {
        Ok(DType::from_raw(self.raw_info()?.dtype))
    }
    /// Number of elements.
    pub fn elements(&self) -> Result<usize> {
        Ok(to_usize(self.raw_info()?.elements))
    }

    /// Checks that a slice can show the elements, and says where and how many they are.
    fn slice_parts<T: Element>(&self, write: bool) -> Result<(*mut T, usize)> {
        let info = self.raw_info()?;
        let dtype = DType::from_raw(info.dtype);
        if dtype != T::DTYPE {
            return Err(Error::invalid(format!(
                "the tensor holds {dtype}, not {}",
                T::DTYPE
            )));
        }
        if DeviceKind::from_raw(info.device_kind) != DeviceKind::Cpu {
            return Err(Error::new(
                Status::Unsupported,
                "the tensor is not in host memory: use to_vec",
            ));
        }
        if info.contiguous == 0 {
            return Err(Error::new(
                Status::Unsupported,
                "the tensor's elements are not packed: use to_vec",
            ));
        }
        if write && info.read_only != 0 {
            return Err(Error::new(Status::State, "the tensor is read-only"));
        }
        let data = info.data.cast::<T>();
        let data = if info.elements == 0 {
            NonNull::dangling().as_ptr()
        } else {
            data
        };
        Ok((data, to_usize(info.elements)))
    }

    /// The elements where they lie. The tensor must hold `T`, packed, in host memory.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        let (data, elements) = self.slice_parts::<T>(false)?;
        // SAFETY: the memory holds so many elements of T while the tensor lives, and nobody writes
        // to it while `self` is borrowed.
        Ok(unsafe { std::slice::from_raw_parts(data, elements) })
    }

    /// The elements where they lie, to be written. As [`Tensor::as_slice`], and not read-only.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let (data, elements) = self.slice_parts::<T>(true)?;
        // SAFETY: as above, and `self` is borrowed exclusively.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, elements) })
    }

    /// A copy of the elements in row-major order, also of strided tensors and of memory of a GPU.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        let info = self.raw_info()?;
        let dtype = DType::from_raw(info.dtype);
        if dtype != T::DTYPE {
            return Err(Error::invalid(format!(
                "the tensor holds {dtype}, not {}",
                T::DTYPE
            )));
        }
        let mut values = vec![T::ZERO; to_usize(info.elements)];
        let bytes = to_i64(values.len() * size_of::<T>());
        // SAFETY: the buffer has so many bytes.
        check(unsafe { sys::ds_tensor_read(self.raw(), values.as_mut_ptr().cast(), bytes) })?;
        Ok(values)
    }

    /// Overwrites the elements in row-major order.
    pub fn write<T: Element>(&mut self, values: &[T]) -> Result<()> {
        let dtype = self.dtype()?;
        if dtype != T::DTYPE {
            return Err(Error::invalid(format!(
                "the tensor holds {dtype}, not {}",
                T::DTYPE
            )));
        }
        let bytes = to_i64(std::mem::size_of_val(values));
        // SAFETY: the buffer has so many bytes; another number than the tensor's is refused.
        check(unsafe { sys::ds_tensor_write(self.raw(), values.as_ptr().cast(), bytes) })
    }

    /// The value of a tensor of one element.
    pub fn item(&self) -> Result<f64> {
        let mut value = 0.0;
        // SAFETY: writes one number.
        check(unsafe { sys::ds_tensor_item(self.raw(), &mut value) })?;
        Ok(value)
    }

    /// Copies tensors of one type one after another into a new one of one dimension.
    pub fn flatten<'t, R: AsRef<Tensor<'t>>>(tensors: &[R]) -> Result<Tensor<'static>> {
        let list = raw_list(tensors);
        // SAFETY: `list` has so many handles, which are read.
        let handle =
            make(|out| unsafe { sys::ds_tensor_flatten(list.as_ptr(), to_i64(list.len()), out) })?;
        Ok(Tensor::of(handle))
    }

    /// Cuts a flat tensor into pieces of the shapes of others, in order, without a copy: the inverse
    /// of [`Tensor::flatten`]. The pieces share the memory, each its own part.
    pub fn unflatten<'t, R: AsRef<Tensor<'t>>>(self, shapes_like: &[R]) -> Result<Vec<Tensor<'a>>> {
        let list = raw_list(shapes_like);
        let mut out = vec![ptr::null_mut(); list.len()];
        // SAFETY: both lists have so many elements.
        check(unsafe {
            sys::ds_tensor_unflatten(
                self.raw(),
                list.as_ptr(),
                to_i64(list.len()),
                out.as_mut_ptr(),
            )
        })?;
        out.into_iter()
            .map(|raw| Ok(Tensor::of(Handle::own(raw)?)))
            .collect()
    }

    /// Codes of 8 or 4 bits and a float32 scale for each block of `block_size` elements, the format
    /// in which ZeRO++ sends weights and gradients.
    pub fn quantize(&self, bits: u8, block_size: usize) -> Result<Quantized> {
        let (mut codes, mut scales) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: gives two handles.
        check(unsafe {
            sys::ds_tensor_quantize(
                self.raw(),
                bits.into(),
                to_i64(block_size),
                &mut codes,
                &mut scales,
            )
        })?;
        let codes = Tensor::of(Handle::own(codes)?);
        Ok(Quantized {
            codes,
            scales: Tensor::of(Handle::own(scales)?),
            bits,
            block_size,
        })
    }

    /// Codes of 8 or 4 bits by groups, each with a float32 scale and perhaps a minimum.
    pub fn quantize_groups(&self, format: GroupFormat) -> Result<QuantizedGroups> {
        let (mut codes, mut scales) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: gives two handles.
        check(unsafe {
            sys::ds_tensor_quantize_groups(
                self.raw(),
                format.bits.into(),
                to_i64(format.group_size),
                format.asymmetric.into(),
                format.seed(),
                &mut codes,
                &mut scales,
            )
        })?;
        let codes = Tensor::of(Handle::own(codes)?);
        Ok(QuantizedGroups {
            codes,
            scales: Tensor::of(Handle::own(scales)?),
            format,
        })
    }

    /// This tensor quantised and dequantised by groups.
    pub fn fake_quantize(&self, format: GroupFormat) -> Result<Tensor<'static>> {
        // SAFETY: gives a handle.
        let handle = make(|out| unsafe {
            sys::ds_tensor_fake_quantize(
                self.raw(),
                format.bits.into(),
                to_i64(format.group_size),
                format.asymmetric.into(),
                format.seed(),
                out,
            )
        })?;
        Ok(Tensor::of(handle))
    }

    /// The softmax of this tensor's attention scores, times a scale, along the last dimension. The
    /// mask (`u8`) is 0 where a key is hidden; with `causal` queries see no later keys.
    pub fn softmax(
        &self,
        mask: Option<&Tensor<'_>>,
        scale: f64,
        causal: bool,
    ) -> Result<Tensor<'static>> {
        let mask = mask.map_or(ptr::null_mut(), Tensor::raw);
        // SAFETY: reads tensors, gives a handle.
        let handle = make(|out| unsafe {
            sys::ds_tensor_softmax(self.raw(), mask, scale, causal.into(), out)
        })?;
        Ok(Tensor::of(handle))
    }

    /// The gradient with respect to the scores of which this tensor is the softmax.
    pub fn softmax_backward(&self, gradient: &Tensor<'_>, scale: f64) -> Result<Tensor<'static>> {
        // SAFETY: reads tensors, gives a handle.
        let handle = make(|out| unsafe {
            sys::ds_tensor_softmax_backward(self.raw(), gradient.raw(), scale, out)
        })?;
        Ok(Tensor::of(handle))
    }

    /// Splits packed projections `[batch, tokens, parts * heads * size]`, plus a bias, into heads:
    /// `[parts, batch, heads, tokens, size]`.
    pub fn split_heads(
        &self,
        bias: Option<&Tensor<'_>>,
        parts: i32,
        heads: i32,
    ) -> Result<Tensor<'static>> {
        let bias = bias.map_or(ptr::null_mut(), Tensor::raw);
        // SAFETY: reads tensors, gives a handle.
        let handle =
            make(|out| unsafe { sys::ds_tensor_split_heads(self.raw(), bias, parts, heads, out) })?;
        Ok(Tensor::of(handle))
    }

    /// The inverse of [`Tensor::split_heads`] without a bias.
    pub fn merge_heads(&self) -> Result<Tensor<'static>> {
        // SAFETY: reads a tensor, gives a handle.
        let handle = make(|out| unsafe { sys::ds_tensor_merge_heads(self.raw(), out) })?;
        Ok(Tensor::of(handle))
    }
}

/// The handles of tensors that a call reads.
pub(crate) fn raw_list<'t, R: AsRef<Tensor<'t>>>(tensors: &[R]) -> Vec<*mut sys::ds_tensor> {
    tensors.iter().map(|tensor| tensor.as_ref().raw()).collect()
}

/// The same of tensors that a call writes to.
pub(crate) fn raw_list_mut(tensors: &mut [Tensor<'_>]) -> Vec<*mut sys::ds_tensor> {
    tensors.iter().map(Tensor::raw).collect()
}

impl<'a> TensorRef<'a> {
    /// A tensor of a handle whose memory nobody writes to for `'a`.
    pub(crate) fn of(handle: Handle<sys::ds_tensor>) -> TensorRef<'a> {
        TensorRef {
            tensor: Tensor::of(handle),
        }
    }
}

/// What [`Tensor::quantize`] gives.
#[derive(Debug)]
pub struct Quantized {
    /// `u8`; with 4 bits two codes in a byte.
    pub codes: Tensor<'static>,
    /// `f32`, one for each block.
    pub scales: Tensor<'static>,
    bits: u8,
    block_size: usize,
}

impl Quantized {
    /// Writes code * scale to every element of a tensor.
    pub fn dequantize(&self, output: &mut Tensor<'_>) -> Result<()> {
        let (codes, scales) = (self.codes.raw(), self.scales.raw());
        // SAFETY: `output` is borrowed exclusively.
        check(unsafe {
            sys::ds_tensor_dequantize(
                codes,
                scales,
                self.bits.into(),
                to_i64(self.block_size),
                output.raw(),
            )
        })
    }
}

/// How numbers become codes by groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFormat {
    /// 8 or 4.
    pub bits: u8,
    /// Elements that share a scale: even.
    pub group_size: usize,
    /// Whether groups have minima.
    pub asymmetric: bool,
    /// Stochastic rounding drawn from this seed, whose mean is the element; `None`: to the nearest.
    pub seed: Option<u32>,
}

impl GroupFormat {
    fn seed(&self) -> i64 {
        self.seed.map_or(-1, i64::from)
    }
}

/// What [`Tensor::quantize_groups`] gives.
#[derive(Debug)]
pub struct QuantizedGroups {
    /// `u8`; with 4 bits two codes in a byte.
    pub codes: Tensor<'static>,
    /// `f32`, one for each group; minima in a second row.
    pub scales: Tensor<'static>,
    format: GroupFormat,
}

impl QuantizedGroups {
    /// Writes what the codes stand for to every element of a tensor.
    pub fn dequantize(&self, output: &mut Tensor<'_>) -> Result<()> {
        let (codes, scales) = (self.codes.raw(), self.scales.raw());
        let GroupFormat {
            bits, group_size, ..
        } = self.format;
        // SAFETY: `output` is borrowed exclusively.
        check(unsafe {
            sys::ds_tensor_dequantize_groups(
                codes,
                scales,
                bits.into(),
                to_i64(group_size),
                output.raw(),
            )
        })
    }
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.info() {
            Ok(info) => write!(
                f,
                "Tensor({} {:?}, {})",
                info.dtype, info.shape, info.device
            ),
            Err(error) => write!(f, "Tensor({error})"),
        }
    }
}
