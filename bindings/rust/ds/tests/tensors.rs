//! Tensors: whose memory they show, and what they refuse.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use ds::{Bf16, Bool, DType, Status, Tensor, F16};

#[test]
fn memory_is_shown_where_it_lies() {
    let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let address = values.as_ptr();
    let borrowed = Tensor::from_slice(&values, &[2, 3]).unwrap();
    assert_eq!(borrowed.as_slice::<f32>().unwrap().as_ptr(), address);
    let mut owned = Tensor::from_vec(values, &[3, 2]).unwrap();
    assert_eq!(owned.as_slice::<f32>().unwrap().as_ptr(), address);
    owned.as_mut_slice::<f32>().unwrap()[5] = -1.0;
    owned.as_mut_slice::<f32>().unwrap()[0] = 8.0;
    assert_eq!(
        owned.to_vec::<f32>().unwrap(),
        [8.0, 1.0, 2.0, 3.0, 4.0, -1.0]
    );
    owned.write(&[0.5f32; 6]).unwrap();
    assert_eq!(owned.as_slice::<f32>().unwrap(), [0.5; 6]);
    let info = owned.info().unwrap();
    assert_eq!(
        (info.shape, info.strides, info.bytes),
        (vec![3, 2], vec![2, 1], 24)
    );
    assert!(info.contiguous && !info.read_only);
    assert_eq!(format!("{owned:?}"), "Tensor(f32 [3, 2], cpu)");
}

#[test]
fn every_type_is_known() {
    macro_rules! check {
        ($($type:ty: $dtype:ident, $value:expr;)*) => {$({
            let tensor = Tensor::from_vec::<$type>(vec![$value; 3], &[3]).unwrap();
            assert_eq!(tensor.dtype().unwrap(), DType::$dtype);
            assert_eq!(tensor.as_slice::<$type>().unwrap(), [$value; 3]);
            assert_eq!(tensor.to_vec::<$type>().unwrap(), [$value; 3]);
            assert_eq!(Tensor::zeros::<$type>(&[2, 2]).unwrap().elements().unwrap(), 4);
        })*};
    }
    check! {
        f32: F32, 1.5; f64: F64, 1.5; F16: F16, F16::from_f32(1.5); Bf16: Bf16, Bf16::from_f32(1.5);
        i8: I8, -3; i16: I16, -3; i32: I32, -3; i64: I64, -3;
        u8: U8, 3; u16: U16, 3; u32: U32, 3; u64: U64, 3; Bool: Bool, Bool::from(true);
    }
    assert_eq!(
        Tensor::scalar(F16::from_f32(1.5)).unwrap().item().unwrap(),
        1.5
    );
    assert_eq!(
        Tensor::scalar(Bf16::from_f32(-2.0))
            .unwrap()
            .item()
            .unwrap(),
        -2.0
    );
}

#[test]
fn wrong_uses_are_refused() {
    let mut tensor = Tensor::zeros::<f32>(&[2, 2]).unwrap();
    let texts = [
        tensor.as_slice::<i32>().map(drop).unwrap_err(),
        tensor.as_mut_slice::<f64>().map(drop).unwrap_err(),
        tensor.to_vec::<u8>().map(drop).unwrap_err(),
        tensor.write(&[1i64; 4]).unwrap_err(),
        tensor.write(&[1.0f32; 3]).unwrap_err(),
        tensor.item().map(drop).unwrap_err(),
        Tensor::from_vec(vec![1.0f32; 5], &[2, 2])
            .map(drop)
            .unwrap_err(),
        Tensor::from_slice(&[1.0f32; 5], &[usize::MAX, 2])
            .map(drop)
            .unwrap_err(),
        Tensor::zeros::<f32>(&[1; 9]).map(drop).unwrap_err(),
        Tensor::zeros_of(DType::Unknown, &[1])
            .map(drop)
            .unwrap_err(),
        Tensor::flatten::<Tensor<'_>>(&[]).map(drop).unwrap_err(),
    ];
    for error in texts {
        assert_eq!(error.status(), Status::InvalidArgument, "{error}");
    }
    assert!(tensor
        .as_slice::<i32>()
        .unwrap_err()
        .message()
        .contains("f32"));
    let text = ds::Model::new("a\0b", 1).unwrap_err();
    assert!(text.message().contains("NUL byte at 1"), "{text}");
}

#[test]
fn empty_tensors_are_slices() {
    let mut empty = Tensor::from_vec(Vec::<i16>::new(), &[0, 4]).unwrap();
    assert!(empty.as_slice::<i16>().unwrap().is_empty());
    assert!(empty.as_mut_slice::<i16>().unwrap().is_empty());
    assert!(empty.to_vec::<i16>().unwrap().is_empty());
}

#[test]
fn memory_of_the_program_is_released_once() {
    let count = Arc::new(AtomicUsize::new(0));
    let mut memory = vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let data = memory.as_mut_ptr().cast();
    let counted = Arc::clone(&count);
    // SAFETY: the vector moves into `release`, so nobody else uses it.
    let tensor = unsafe {
        Tensor::from_raw_parts(data, DType::F32, &[2, 2], Some(&[3, 1]), move || {
            drop(memory);
            counted.fetch_add(1, Ordering::Relaxed);
        })
    };
    let tensor = tensor.unwrap();
    assert_eq!(tensor.to_vec::<f32>().unwrap(), [1.0, 2.0, 4.0, 5.0]);
    assert_eq!(
        tensor.as_slice::<f32>().unwrap_err().status(),
        Status::Unsupported
    );
    assert_eq!(count.load(Ordering::Relaxed), 0);
    drop(tensor);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    let counted = Arc::clone(&count);
    // SAFETY: the library refuses a null pointer.
    let none = unsafe {
        Tensor::from_raw_parts(std::ptr::null_mut(), DType::F32, &[2], None, move || {
            counted.fetch_add(1, Ordering::Relaxed);
        })
    };
    assert!(none.is_err());
    assert_eq!(
        (count.load(Ordering::Relaxed), Arc::strong_count(&count)),
        (1, 1)
    );
}

#[test]
fn pieces_of_a_flat_tensor_share_its_memory() {
    let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap();
    let b = Tensor::from_vec(vec![5.0f32], &[1]).unwrap();
    let flat = Tensor::flatten(&[&a, &b]).unwrap();
    assert_eq!(flat.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0]);
    let address = flat.as_slice::<f32>().unwrap().as_ptr();
    let mut pieces = flat.unflatten(&[&a, &b]).unwrap();
    assert_eq!(pieces[0].shape().unwrap(), [2, 2]);
    assert_eq!(pieces[0].as_slice::<f32>().unwrap().as_ptr(), address);
    pieces[1].as_mut_slice::<f32>().unwrap()[0] = 9.0;
    assert_eq!(
        pieces[0].to_vec::<f32>().unwrap(),
        a.to_vec::<f32>().unwrap()
    );
    assert_eq!(pieces[1].item().unwrap(), 9.0);
}

#[test]
fn groups_come_back_within_half_a_step() {
    let values: Vec<f32> = (0..64).map(|i| 1.0 + (i as f32 * 0.7).sin()).collect();
    let tensor = Tensor::from_slice(&values, &[64]).unwrap();
    let format = ds::GroupFormat {
        bits: 4,
        group_size: 16,
        asymmetric: true,
        seed: None,
    };
    let quantized = tensor.quantize_groups(format).unwrap();
    assert_eq!(quantized.scales.shape().unwrap(), [2, 4]);
    let mut back = Tensor::zeros::<f32>(&[64]).unwrap();
    quantized.dequantize(&mut back).unwrap();
    let back = back.to_vec::<f32>().unwrap();
    for (a, b) in back.iter().zip(&values) {
        assert!((a - b).abs() <= 1.0 / 15.0 + 1e-6, "{a} and {b}");
    }
    let fake = tensor.fake_quantize(format).unwrap();
    assert_eq!(fake.to_vec::<f32>().unwrap(), back);
}

#[test]
fn softmax_and_heads() {
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 2, 2]).unwrap();
    let y = x.softmax(None, 1.0, true).unwrap();
    let expected = [1.0f32, 0.0, 0.268_941_43, 0.731_058_6];
    for (a, b) in y.to_vec::<f32>().unwrap().iter().zip(expected) {
        assert!((a - b).abs() < 1e-6, "{a} and {b}");
    }
    let dx = y.softmax_backward(&x, 1.0).unwrap();
    assert!((dx.to_vec::<f32>().unwrap()[3] - 0.196_611_93).abs() < 1e-6);
    let split = x.split_heads(None, 1, 2).unwrap();
    assert_eq!(split.to_vec::<f32>().unwrap(), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(
        split.merge_heads().unwrap().to_vec::<f32>().unwrap(),
        [1.0, 2.0, 3.0, 4.0]
    );
}

#[test]
fn quantised_numbers_come_back_nearly() {
    let values: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin()).collect();
    let tensor = Tensor::from_slice(&values, &[64]).unwrap();
    for (bits, most) in [(8u8, 0.01), (4, 0.15)] {
        let quantized = tensor.quantize(bits, 32).unwrap();
        assert_eq!(quantized.scales.elements().unwrap(), 2);
        assert_eq!(
            quantized.codes.elements().unwrap(),
            64 * usize::from(bits) / 8
        );
        let mut back = Tensor::zeros::<f32>(&[64]).unwrap();
        quantized.dequantize(&mut back).unwrap();
        let errors = back
            .as_slice::<f32>()
            .unwrap()
            .iter()
            .zip(&values)
            .map(|(a, b)| (a - b).abs());
        let worst = errors.fold(0.0, f32::max);
        assert!(worst < most && worst > 0.0, "{bits} bits: {worst}");
    }
}

#[test]
fn dlpack_goes_out_and_in_without_a_copy() {
    let tensor = Tensor::from_vec(vec![1i32, 2, 3], &[3]).unwrap();
    let address = tensor.as_slice::<i32>().unwrap().as_ptr();
    let managed = tensor.into_dlpack().unwrap();
    // SAFETY: it has just been given away, and nobody else has it.
    let again = unsafe { Tensor::from_dlpack(managed, std::ptr::null_mut()) }.unwrap();
    assert_eq!(again.as_slice::<i32>().unwrap().as_ptr(), address);
    assert_eq!(again.to_vec::<i32>().unwrap(), [1, 2, 3]);
}

#[test]
fn threads_read_one_tensor() {
    let tensor = Tensor::from_vec((0..1000i64).collect(), &[1000]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(tensor.to_vec::<i64>().unwrap()[999], 999);
                    assert_eq!(tensor.as_slice::<i64>().unwrap()[7], 7);
                }
            });
        }
    });
}

#[test]
fn streams_are_of_gpus() {
    let shape = r#"{"model_type": "gpt2", "vocab_size": 8, "n_positions": 8, "n_embd": 8,
        "n_layer": 1, "n_head": 1}"#;
    let mut model = ds::Model::new(shape, 1).unwrap();
    // SAFETY: null ends what was not begun; a model in host memory refuses any other unseen.
    let (none, some) = unsafe {
        (
            model.set_stream(std::ptr::null_mut()),
            model.set_stream(std::ptr::NonNull::dangling().as_ptr()),
        )
    };
    none.unwrap();
    assert_eq!(some.unwrap_err().status(), Status::Unsupported);
}

#[test]
fn experts_choose_dispatch_and_combine() {
    use ds::experts;
    let logits = Tensor::from_vec(vec![0.0f32, 2.0, 1.0, 3.0, -1.0, 0.5], &[2, 3]).unwrap();
    let options = Some(r#"{"top_k": 2, "route_norm": true}"#);
    let gate = experts::gate(&logits, None, options).unwrap();
    assert_eq!(gate.chosen.to_vec::<i32>().unwrap(), [1, 2, 0, 2]);
    assert_eq!(
        gate.counts.to_vec::<i64>().unwrap(),
        [1, 1, 2, 1, 1, 2, 1, 1, 2]
    );
    let weights = gate.weights.to_vec::<f32>().unwrap();
    assert!((weights[0] + weights[1] - 1.0).abs() < 1e-6);
    assert!((weights[0] / weights[1] - 1.0f32.exp()).abs() < 1e-5);
    let routes = experts::sort(&gate.chosen, 3).unwrap();
    assert_eq!(routes.offsets.to_vec::<i32>().unwrap(), [0, 1, 2, 4]);
    let tokens = Tensor::from_vec(vec![1.0f32, 2.0], &[2, 1]).unwrap();
    let rows = experts::dispatch(&tokens, &routes.order, 2, None).unwrap();
    assert_eq!(rows.to_vec::<f32>().unwrap(), [2.0, 1.0, 1.0, 2.0]);
    let back = experts::combine(&rows, &routes.places, None).unwrap();
    assert_eq!(back.to_vec::<f32>().unwrap(), [2.0, 4.0]);
    let dots = experts::weights_backward(&rows, &routes.places, &tokens).unwrap();
    assert_eq!(dots.to_vec::<f32>().unwrap(), [1.0, 1.0, 4.0, 4.0]);
    let ones = Tensor::from_vec(vec![1.0f32; 4], &[2, 2]).unwrap();
    let dx = experts::gate_backward(&logits, &gate, Some(&ones), None, options).unwrap();
    assert!(dx.to_vec::<f32>().unwrap().iter().all(|g| g.abs() < 1e-6));
    let refused = experts::gate(&logits, None, Some(r#"{"topk": 2}"#));
    assert_eq!(refused.err().unwrap().status(), ds::Status::Config);
}
