//! What is said at the socket of a server, and what a client is told there.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use treefork::server::Client;

/// Nobody takes so long over some bytes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Says this to the server of a store, which must answer or hang up, and go on. Nothing that would end it is said.
pub(crate) fn request(store: &Path, data: &[u8]) {
    if data.windows(8).any(|window| window.eq_ignore_ascii_case(b"shutdown")) {
        return;
    }
    let mut stream = UnixStream::connect(store.join("server.sock")).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket of ours");
    // It may have hung up at once.
    let _ = stream.write_all(data).and_then(|()| stream.shutdown(Shutdown::Write));
    let mut answer = Vec::new();
    if let Err(e) = stream.read_to_end(&mut answer) {
        assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "neither answered nor hung up: {e}");
    }
    for frame in frames(&answer) {
        serde_json::from_slice::<serde_json::Value>(frame).expect("an answer is JSON");
    }
}

/// The frames in a stream.
fn frames(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (frame, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        bytes = rest;
        Some(frame)
    })
}

/// Lets a server answer this to a client, which gets an error or an answer.
pub(crate) fn answer(data: &[u8]) {
    let store = super::scratch();
    let path = store.join("server.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).expect("there is room");
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut head = [0; 4];
                if stream.read_exact(&mut head).is_err() || head == [0; 4] {
                    return;
                }
                let mut body = vec![0; u32::from_le_bytes(head) as usize];
                let _ = stream.read_exact(&mut body).and_then(|()| stream.write_all(data));
            }
        });
        drop(Client::new(&store).drift("id"));
        // The end, as the thread above knows it.
        let _ = UnixStream::connect(&path).and_then(|mut stream| stream.write_all(&[0; 4]));
        // Gone with all that it had: a scope does not wait for that.
        server.join().expect("nothing in it can fail");
    });
}
