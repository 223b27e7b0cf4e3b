//! Blocking signals, catching them with where they came from (a byte each through a pipe, which a thread can read), and
//! stopping by one.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::pipe::{PipeFlags, pipe_with};

/// The signals that a thread does not take at the moment.
pub struct Mask(libc::sigset_t);

impl Mask {
    /// Blocks all signals in this thread; the mask from before.
    pub fn block_all() -> io::Result<Mask> {
        let (mut all, mut old) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: both sets are valid for writing, the first is filled before it is read, and the call fills the second.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            match libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) {
                0 => Ok(Mask(old.assume_init())),
                errno => Err(io::Error::from_raw_os_error(errno)),
            }
        }
    }

    /// Goes back to this mask.
    pub fn restore(&self) {
        // SAFETY: the set was filled by `block_all`, and no old mask is asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
    }
}

/// A signal that was caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caught {
    /// Its number.
    pub signal: i32,
    /// The kernel sent it: a key on the terminal, a terminal that went away. Else a process did.
    pub by_kernel: bool,
}

/// The end of the pipe that the handler writes to; -1 before the first [`catch_signals`].
static WRITE: AtomicI32 = AtomicI32::new(-1);

const BY_KERNEL: u8 = 0x80;

/// Catches these signals from now on, other than those that are ignored: each comes as a byte for [`caught`] out of the
/// returned pipe. The last caller gets them all.
pub fn catch_signals(signals: &[i32]) -> io::Result<OwnedFd> {
    // The handler may not block: what does not fit in a pipe is more than anybody waits for.
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // Never closed: a handler may be about to write to it.
    WRITE.store(write.into_raw_fd(), Ordering::SeqCst);
    rustix::io::ioctl_fionbio(&read, false)?;
    for &signal in signals {
        catch(signal)?;
    }
    Ok(read)
}

/// What a byte of the pipe means.
pub fn caught(byte: u8) -> Caught {
    Caught { signal: i32::from(byte & !BY_KERNEL), by_kernel: byte & BY_KERNEL != 0 }
}

fn catch(signal: i32) -> io::Result<()> {
    let mut old = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the disposition only; all zeroes is a valid value where the call fails, which is checked.
    let (result, old) = unsafe { (libc::sigaction(signal, std::ptr::null(), old.as_mut_ptr()), old.assume_init()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if old.sa_sigaction == libc::SIG_IGN {
        return Ok(());
    }
    // SAFETY: all zeroes is a valid `sigaction` (no flags, an empty mask).
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    let action: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handler;
    new.sa_sigaction = action as libc::sighandler_t;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and does nothing that a handler may not.
    match unsafe { libc::sigaction(signal, &new, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Stops this process by this signal, as if it were not caught; returns when it is continued.
pub fn stop_by(signal: i32) {
    let (mut old, default) = (MaybeUninit::<libc::sigaction>::zeroed(), MaybeUninit::<libc::sigaction>::zeroed());
    // SAFETY: all zeroes is a valid `sigaction` and asks for the default; the old one is put back only where the call has
    // filled it. `raise` sends the signal to this thread, which stops before it returns.
    unsafe {
        let replaced = libc::sigaction(signal, default.as_ptr(), old.as_mut_ptr()) == 0;
        libc::raise(signal);
        if replaced {
            libc::sigaction(signal, old.as_ptr(), std::ptr::null_mut());
        }
    }
}

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes valid information to a SA_SIGINFO handler. write(2) may be called in one, with a byte
    // on the stack and a descriptor that is never closed; errno is put back for the code that was interrupted.
    unsafe {
        let errno = *libc::__errno_location();
        let code = (*info).si_code;
        let byte = (signal as u8 & !BY_KERNEL) | if code > 0 { BY_KERNEL } else { 0 };
        libc::write(WRITE.load(Ordering::SeqCst), (&raw const byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_who_sent_a_signal() {
        let pipe = catch_signals(&[libc::SIGURG]).expect("can be caught");
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::URG).expect("our own process");
        let mut byte = [0];
        assert_eq!(rustix::io::read(&pipe, &mut byte), Ok(1));
        assert_eq!(caught(byte[0]), Caught { signal: libc::SIGURG, by_kernel: false });
    }
}
