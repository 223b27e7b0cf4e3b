//! Frames on the socket: a length, that many bytes of JSON, and at most one descriptor that travels with them.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The longest frame that is read. A list of ten thousand mounts fits.
const FRAME_MAX: u32 = 16 * 1024 * 1024;

/// Sends one frame.
pub(super) fn send<T: Serialize>(mut stream: &UnixStream, message: &T, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).ok().filter(|&n| n <= FRAME_MAX);
    let length = length.ok_or_else(|| io::Error::other("the message is too long"))?.to_le_bytes();
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&length);
    frame.extend_from_slice(&body);
    let mut sent = 0;
    if let Some(fd) = fd {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [fd];
        control.push(SendAncillaryMessage::ScmRights(&fds));
        sent = rustix::net::sendmsg(stream, &[IoSlice::new(&frame)], &mut control, SendFlags::NOSIGNAL)?;
    }
    io::Write::write_all(&mut stream, &frame[sent..])
}

/// Receives one frame; `None` where the other side closed the connection instead.
pub(super) fn receive<T: DeserializeOwned>(mut stream: &UnixStream) -> io::Result<Option<(T, Option<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut length = [0; 4];
    let first = loop {
        let mut into = [IoSliceMut::new(&mut length)];
        match rustix::net::recvmsg(stream.as_fd(), &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?.bytes,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut fds) = message {
            fd = fds.next();
        }
    }
    stream.read_exact(&mut length[first..])?;
    let length = u32::from_le_bytes(length);
    if length > FRAME_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the frame is too long"));
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body)?;
    Ok(Some((serde_json::from_slice(&body)?, fd)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries_text_and_a_descriptor() {
        let (a, b) = UnixStream::pair().expect("socket pair");
        let file = tempfile::tempfile().expect("temporary file");
        let sender = std::thread::spawn(move || {
            send(&a, &"x".repeat(1_000_000), Some(file.as_fd())).expect("sends");
            send(&a, &7, None).expect("sends");
        });
        let (text, fd) = receive::<String>(&b).expect("receives").expect("a frame");
        assert_eq!(text.len(), 1_000_000);
        rustix::fs::fstat(fd.expect("came along")).expect("an open file");
        let (number, none) = receive::<u32>(&b).expect("receives").expect("a frame");
        assert!(number == 7 && none.is_none());
        sender.join().expect("no panic");
        assert!(receive::<u32>(&b).expect("closed").is_none());
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x02\x00\x00\x00{x", b"\x05\x00"] {
            let (mut a, b) = UnixStream::pair().expect("socket pair");
            io::Write::write_all(&mut a, bytes).expect("fits the buffer");
            drop(a);
            receive::<u32>(&b).expect_err("nonsense");
        }
    }
}
