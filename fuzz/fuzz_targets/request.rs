#![no_main]
//! The server is one of this process, and can mount nothing.

#[path = "../../tests/fuzz/targets/mod.rs"]
mod targets;

use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::mpsc;

use treefork::error::{Error, Kind, Result};
use treefork::server::{self, Backend, How, MountSpec, Mounted};

struct Nothing;

impl Backend for Nothing {
    fn mount(&self, _: &MountSpec, _: How) -> Result<Box<dyn Mounted>> {
        Err(Error::new(Kind::Unavailable, "nothing is mounted here"))
    }

    fn settle(&self, _: &MountSpec) -> Result<()> {
        Ok(())
    }
}

static STORE: LazyLock<PathBuf> = LazyLock::new(|| {
    let store = tempfile::tempdir().expect("there is room").keep();
    let (ready, is_ready) = mpsc::channel();
    let at = store.clone();
    std::thread::spawn(move || {
        let options = server::Options { idle: None, ..server::Options::default() };
        let ready = move || ready.send(()).expect("somebody waits");
        server::run(&at, Box::new(Nothing), options, Vec::new, ready).expect("it runs until the end");
    });
    is_ready.recv().expect("it begins");
    store
});

/// Threads of the server may still be ending when leaks are looked for.
#[unsafe(no_mangle)]
pub extern "C" fn __lsan_is_turned_off() -> i32 {
    1
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::protocol::request(&STORE, data));
