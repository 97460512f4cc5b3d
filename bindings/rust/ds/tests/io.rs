//! Files read and written beside the program, and memory that stays in place.
mod common;

use std::fs::{self, OpenOptions};
use std::thread;

use common::Scratch;
use ds::{DType, FileIo, IoBackend, IoOptions, Status, Tensor};

fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn tensor(count: usize) -> Tensor<'static> {
    Tensor::from_vec(bytes(count), &[count]).unwrap()
}

#[test]
fn every_way_moves_every_byte() {
    let folder = Scratch::new();
    let path = folder.path().join("f");
    let backends = [
        None,
        Some(IoBackend::Uring),
        Some(IoBackend::Libaio),
        Some(IoBackend::Threads),
    ];
    for backend in backends {
        for (single_submit, overlap_events) in [(false, true), (true, false)] {
            let io = match FileIo::new(&IoOptions {
                block_size: Some(1024),
                queue_depth: Some(2),
                intra_op_parallelism: Some(2),
                single_submit: Some(single_submit),
                overlap_events: Some(overlap_events),
                backend,
                ..IoOptions::default()
            }) {
                Ok(io) => io,
                Err(error) if error.status() == Status::Unsupported => continue,
                Err(error) => panic!("{error}"),
            };
            let info = io.info().unwrap();
            assert_eq!((info.block_size, info.queue_depth), (1024, 2));
            assert_eq!(info.single_submit, single_submit);
            assert_eq!(info.overlap_events, overlap_events);
            assert!(backend.is_none() || backend == Some(info.backend));

            io.write_file(path.as_path(), &tensor(5000)).unwrap();
            assert_eq!(fs::read(&path).unwrap(), bytes(5000));
            let mut back = Tensor::zeros::<u8>(&[5000]).unwrap();
            io.read_file(path.as_path(), &mut back).unwrap();
            assert_eq!(back.as_slice::<u8>().unwrap(), bytes(5000));
            io.write(path.as_path(), 9000, &tensor(70_000)).unwrap();

            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .unwrap();
            let write = io.start_write(&file, 100_001, tensor(3000)).unwrap();
            let room = Tensor::zeros::<u8>(&[70_000]).unwrap();
            let read = io.start_read(&file, 9000, room).unwrap();
            assert_eq!(
                read.wait().unwrap().as_slice::<u8>().unwrap(),
                bytes(70_000)
            );
            assert_eq!(io.wait_all().unwrap(), 1);
            assert!(write.test().unwrap());
            assert_eq!(fs::read(&path).unwrap()[100_001..], bytes(3000));
            assert_eq!(io.cancel().unwrap(), 0);
        }
    }
}

#[test]
fn what_fails_is_said_by_who_waits() {
    let folder = Scratch::new();
    let path = folder.path().join("f");
    let io = FileIo::new(&IoOptions {
        checksum: true,
        validate: true,
        ..IoOptions::default()
    })
    .unwrap();
    let missing = io
        .start_read(path.as_path(), 0, tensor(4))
        .map(|_| ())
        .unwrap_err();
    assert_eq!(missing.status(), Status::NotFound);
    io.write_file(path.as_path(), &tensor(1000)).unwrap();
    let short = io.start_read(path.as_path(), 0, tensor(2000)).unwrap();
    let error = short.wait().unwrap_err();
    assert_eq!(error.status(), Status::Corrupt);
    assert!(error.message().contains("ends at byte 1000"), "{error}");

    let mut changed = bytes(1000);
    changed[500] ^= 1;
    fs::write(&path, changed).unwrap();
    let mut back = Tensor::zeros::<u8>(&[1000]).unwrap();
    let error = io.read_file(path.as_path(), &mut back).unwrap_err();
    assert_eq!(error.status(), Status::Corrupt);
    assert!(error.message().contains("checksum"), "{error}");
}

#[test]
fn threads_share_one() {
    let folder = Scratch::new();
    let io = FileIo::new(&IoOptions::default()).unwrap();
    thread::scope(|scope| {
        for number in 0..3usize {
            let (io, path) = (&io, folder.path().join(number.to_string()));
            scope.spawn(move || {
                for size in [1000 + number, 50_000] {
                    io.write_file(path.as_path(), &tensor(size)).unwrap();
                    let room = Tensor::zeros::<u8>(&[size]).unwrap();
                    let read = io.start_read(path.as_path(), 0, room).unwrap();
                    assert_eq!(read.wait().unwrap().as_slice::<u8>().unwrap(), bytes(size));
                }
            });
        }
    });
}

#[test]
fn pinned_memory() {
    let mut pinned = Tensor::pinned(DType::F32, &[3, 5]).unwrap();
    assert!(pinned.is_pinned().unwrap());
    pinned.as_mut_slice::<f32>().unwrap()[7] = 1.5;
    assert_eq!(pinned.as_slice::<f32>().unwrap().iter().sum::<f32>(), 1.5);
    assert!(!tensor(3).is_pinned().unwrap());
}
