//! What is set for the whole process: the log and the allocator. One test after the other, in a
//! process of their own.
mod common;

use std::alloc::Layout;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use ds::log::Level;
use ds::memory::Allocator;
use ds::{DeviceKind, Tensor};

/// Tests of one process run side by side unless they take turns.
static TURN: Mutex<()> = Mutex::new(());

#[test]
fn a_closure_hears_the_log() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let copy = Arc::clone(&heard);
    ds::log::set_sink(move |level, component, text| {
        copy.lock()
            .unwrap()
            .push((level, component.to_string(), text.to_string()));
    })
    .unwrap();
    ds::log::set_level(Level::Debug).unwrap();
    let scratch = common::Scratch::new();
    let mut engine = common::trainer(&scratch, common::CONFIG);
    engine.train_batch().unwrap();
    // A setting that the library takes and warns of is told at least once.
    let shape = common::SHAPE.replacen('{', r#"{"no_such_key_of_any_model": 1,"#, 1);
    let _ = ds::Model::new(&shape, 1);
    let copy_of_config = common::CONFIG.replacen('{', r#"{"_note": 1,"#, 1);
    let lenient = ds::Engine::builder(&copy_of_config).options(r#"{"lenient": true}"#);
    lenient
        .build(ds::Model::new(common::SHAPE, 1).unwrap())
        .unwrap();
    ds::log::set_level(Level::Warning).unwrap();
    let messages = heard.lock().unwrap().clone();
    assert!(
        messages.iter().any(|(_, _, text)| text.contains("_note")),
        "{messages:?}"
    );
    assert!(messages
        .iter()
        .all(|(level, component, _)| { *level != Level::Unknown && !component.is_empty() }));
    ds::log::set_sink(|_, _, _| panic!("a sink that fails")).unwrap();
    ds::log::set_level(Level::Debug).unwrap();
    let lenient = ds::Engine::builder(&copy_of_config).options(r#"{"lenient": true}"#);
    lenient
        .build(ds::Model::new(common::SHAPE, 1).unwrap())
        .unwrap();
    ds::log::set_level(Level::Warning).unwrap();
    ds::log::reset_sink().unwrap();
    assert_eq!(Arc::strong_count(&heard), 1, "the first sink is gone");
}

/// Memory of the system, counted.
struct Counting {
    bytes: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    layouts: Mutex<HashMap<usize, Layout>>,
}

// SAFETY: the system's allocator gives what is asked for.
unsafe impl Allocator for Counting {
    fn allocate(&self, bytes: usize, alignment: usize, device_index: usize) -> *mut u8 {
        assert_eq!(device_index, 0);
        let layout = Layout::from_size_align(bytes.max(1), alignment).unwrap();
        // SAFETY: the size is not zero.
        let memory = unsafe { std::alloc::alloc(layout) };
        self.layouts.lock().unwrap().insert(memory as usize, layout);
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(now, Ordering::Relaxed);
        memory
    }
    unsafe fn deallocate(&self, memory: *mut u8, bytes: usize, _: usize) {
        let layout = self
            .layouts
            .lock()
            .unwrap()
            .remove(&(memory as usize))
            .unwrap();
        assert_eq!(layout.size(), bytes.max(1));
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        std::alloc::dealloc(memory, layout);
    }
}

#[test]
fn memory_comes_from_the_program_s_allocator() {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (bytes, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let allocator = Counting {
        bytes: Arc::clone(&bytes),
        most: Arc::clone(&most),
        layouts: Mutex::default(),
    };
    ds::memory::set_allocator(DeviceKind::Cpu, allocator).unwrap();
    let tensor = Tensor::zeros::<f64>(&[100_000]).unwrap();
    assert!(bytes.load(Ordering::Relaxed) >= 800_000);
    assert_eq!(tensor.as_slice::<f64>().unwrap()[99_999], 0.0);
    let scratch = common::Scratch::new();
    let mut engine = common::trainer(&scratch, common::CONFIG);
    for report in engine.steps(3) {
        report.unwrap();
    }
    drop((engine, tensor));
    ds::memory::reset_allocator(DeviceKind::Cpu).unwrap();
    assert!(most.load(Ordering::Relaxed) > 900_000);
    assert_eq!(bytes.load(Ordering::Relaxed), 0, "everything came back");
    assert_eq!(Arc::strong_count(&bytes), 1, "the allocator is gone");
}
