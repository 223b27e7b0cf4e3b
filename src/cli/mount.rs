//! The raw mount: an overlay of directories that somebody else chose, without a store.
//!
//! `treefork mount -o lowerdir=A:B,upperdir=U,workdir=W MNT`, and the same binary under the name
//! `mount.fuse.treefork`, as `mount -t fuse.treefork` and container tools call it: `[SOURCE] MNT -o OPTIONS`. It goes to
//! the background by starting itself anew, and returns once the mount answers; with `-f` it stays. `SIGTERM`, `SIGINT`
//! and `SIGHUP` end the mount, `SIGUSR1` prints how many requests of each kind it has served.

mod options;

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;

use clap::{Args, Parser};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::output;
use crate::error::{Context, Error, Kind, Result};
use crate::fuse::{self, Session};
use crate::layer::hidden::Hidden;
use crate::layer::watch::Watch;
use crate::overlay::{Config, FdCache, Large, Lower, Overlay};
use crate::sys::{Stat, open_root};
use options::Words;

/// The name under which `mount(8)` calls us for `-t fuse.treefork`.
const HELPER_NAME: &str = "mount.fuse.treefork";

/// What the background process says to the one that waits for it.
const MOUNTED: u8 = b'.';

/// Arguments of `mount`.
#[derive(Args)]
pub(super) struct Mount {
    /// Mount options, as fuse-overlayfs and mount(8) have them: lowerdir=A:B,upperdir=U,workdir=W,ro,...
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// For the process that goes to the background: say so on standard output, then let go of the terminal
    #[arg(long, hide = true)]
    background: bool,
    /// What `mount` should show as the source (if two are given), and the mount point
    #[arg(value_name = "[SOURCE] MOUNTPOINT", required = true, num_args = 1..=2)]
    places: Vec<PathBuf>,
}

/// The arguments of a mount helper. `mount(8)` adds words about itself that change nothing here.
#[derive(Parser)]
#[command(name = HELPER_NAME, version, about = "Mounts an overlay; called by mount(8)")]
struct Helper {
    #[command(flatten)]
    mount: Mount,
    /// Tolerate sloppy options: none is
    #[arg(short = 's')]
    _sloppy: bool,
    /// Write no mtab: there is none
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Be verbose
    #[arg(short = 'v')]
    _verbose: bool,
    /// The type that was asked for
    #[arg(short = 't', value_name = "TYPE")]
    _kind: Option<OsString>,
}

/// Runs as a mount helper if this process was called by such a name.
pub(super) fn as_helper() -> Option<ExitCode> {
    let name = std::env::args_os().next()?;
    if Path::new(&name).file_name() != Some(OsStr::new(HELPER_NAME)) {
        return None;
    }
    Some(match Helper::try_parse() {
        Ok(helper) => ExitCode::from(helper.mount.for_mount_8().run().unwrap_or_else(|e| output::report(&e, false))),
        Err(e) => ExitCode::from(output::refuse_arguments(&e)),
    })
}

impl Mount {
    /// With the defaults of `mount(8)`, which passes no `dev` and no `suid`: they hold unless it says otherwise.
    /// Only root may have them.
    fn for_mount_8(mut self) -> Self {
        if rustix::process::geteuid().is_root() {
            self.options.insert(0, "dev,suid".into());
        }
        // Container tools name no source. The layers that they hand to a program are in a form of their own.
        if self.places.len() == 1 {
            self.options.insert(0, "image_whiteouts".into());
        }
        self
    }

    pub(super) fn run(self) -> Result<u8> {
        let words = Words::parse(&self.options)?;
        let point = self.places.last().ok_or_else(|| Error::new(Kind::Usage, "no mount point"))?;
        if words.remount {
            return remount(point, &words).map(|()| 0);
        }
        if !self.foreground && !self.background {
            return self.start_in_background();
        }
        prepare_process()?;
        let source = (self.places.len() > 1).then(|| self.places[0].clone().into_os_string());
        let signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1]);
        let signals = signals.map_err(|e| Error::io("cannot listen for signals", e))?;
        let (session, overlay, _watch) = mount(point, words, source)?;
        if self.background {
            let_go()?;
        }
        serve(&session, signals);
        // The layers are the kernel's format again when this process is gone.
        overlay.settle_all().context("cannot copy up the rest of large files of", point)?;
        Ok(0)
    }

    /// Starts this program anew, away from the terminal, and waits until it has mounted or failed.
    fn start_in_background(&self) -> Result<u8> {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("treefork").args(["mount", "--background"]);
        for options in &self.options {
            command.arg("-o").arg(options);
        }
        command.arg("--").args(&self.places);
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| Error::io("cannot start the process for the background", e))?;
        let mut said = [0];
        let mounted = child.stdout.take().is_some_and(|mut pipe| pipe.read_exact(&mut said).is_ok());
        if mounted && said == [MOUNTED] {
            return Ok(0);
        }
        // It has said why on the standard error that it shares with us.
        let status = child.wait().map_err(|e| Error::io("cannot wait for the process in the background", e))?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(1))
    }
}

/// Before there are other threads: a umask that takes nothing away, and room for descriptors.
fn prepare_process() -> Result<()> {
    rustix::process::umask(Mode::empty());
    crate::sys::map_large_blocks();
    crate::sys::raise_descriptor_limit().map_err(|e| Error::io("cannot raise the limit of open descriptors", e))?;
    Ok(())
}

/// Mounts what the words ask for.
fn mount(point: &Path, words: Words, source: Option<OsString>) -> Result<(Session, Arc<Overlay>, Option<Arc<Watch>>)> {
    let Words { lower, upper, work, image, set, clear, allow_other, source: fsname, threads, limits, .. } = words;
    if lower.is_empty() {
        return Err(Error::new(Kind::Usage, "no lowerdir=").remedy("name at least one directory to mount"));
    }
    if upper.is_some() != work.is_some() {
        return Err(Error::new(Kind::Usage, "upperdir= and workdir= go together"));
    }
    if upper.is_none() && !limits.is_nothing() {
        return Err(Error::new(Kind::Usage, "max_size= and max_files= limit an upperdir=, and there is none"));
    }
    let open = |path: &PathBuf| open_root(path).context("cannot open the layer", path);
    let lowers = lower.iter().map(open).collect::<Result<Vec<_>>>()?;
    let upper = upper.as_ref().map(open).transpose()?;
    let work = work.as_ref().map(open).transpose()?;
    refuse_own_mount(point, lowers.iter().chain(&upper).chain(&work))?;

    let mut options = fuse::Options::default();
    options.flags = (options.flags | set) & !clear;
    options.flags.set(MountFlags::RDONLY, upper.is_none() || options.flags.contains(MountFlags::RDONLY));
    options.allow_other |= allow_other;
    options.source = fsname.or(source).unwrap_or(options.source);
    options.threads = threads.unwrap_or(options.threads);

    let watch =
        Watch::new().inspect_err(|e| output::note(&format!("changes of the layers are noticed late: {e}"))).ok();
    let last = lowers.len() - 1;
    let lower = |(number, root)| Lower { root, marked: number != last, image, watch: true };
    let config = Config {
        lowers: lowers.into_iter().enumerate().map(lower).collect(),
        upper,
        work,
        watch: watch.clone(),
        fds: FdCache::of_process(),
        created: None,
        made_on: None,
        hidden: Hidden::default(),
        large: Large::default(),
    };
    let overlay = Overlay::new(config).context("cannot put the layers together for", point)?;
    overlay.limit(limits).context("cannot count what is in the upper of", point)?;
    overlay.resume().context("cannot go on with the large files for", point)?;
    Ok((Session::mount(Arc::clone(&overlay), point, &options)?, overlay, watch))
}

/// A mount point inside a layer would lead the server into its own mount, where it would wait for itself.
/// The mount point may be a layer's very root: the server holds the directory below the mount.
fn refuse_own_mount<'a>(point: &Path, layers: impl Iterator<Item = &'a OwnedFd>) -> Result<()> {
    let of = |fd: &OwnedFd| Stat::of(fd.as_fd()).map(|stat| (stat.dev, stat.ino));
    let layers = layers.map(of).collect::<std::result::Result<Vec<_>, _>>().context("cannot stat a layer of", point)?;
    let point = point.canonicalize().context("cannot mount at", point)?;
    for above in point.ancestors().skip(1) {
        let root = open_root(above).context("cannot open", above)?;
        if layers.contains(&of(&root).context("cannot stat", above)?) {
            let inside = Error::new(Kind::Usage, "the mount point lies inside of a layer").at(&point);
            return Err(inside.remedy("mount somewhere else"));
        }
    }
    Ok(())
}

/// Changes the flags of a mount; with nothing to change, does nothing.
fn remount(point: &Path, words: &Words) -> Result<()> {
    let defaults = fuse::Options::default().flags;
    let flags = (defaults | words.set) & !words.clear;
    if !words.limits.is_nothing() {
        // They may just be those of fstab, which mount(8) repeats: no reason to refuse.
        output::note("max_size= and max_files= stay what they were when it was mounted");
    }
    rustix::mount::mount_remount(point, flags, "").context("cannot remount", point)
}

/// Tells the process that waits, and lets go of the terminal and the directory it was started in.
fn let_go() -> Result<()> {
    let cannot = |e: rustix::io::Errno| Error::io("cannot go to the background", e);
    rustix::process::setsid().map_err(cannot)?;
    rustix::process::chdir("/").map_err(cannot)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(cannot)?;
    output::print(&[MOUNTED])?;
    rustix::stdio::dup2_stdout(&null).map_err(cannot)?;
    rustix::stdio::dup2_stderr(&null).map_err(cannot)
}

/// Serves until somebody unmounts or a signal says so.
fn serve(session: &Session, mut signals: Signals) {
    let handle = signals.handle();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for signal in signals.forever() {
                if signal == SIGUSR1 {
                    output::note(&statistics(session));
                } else if let Err(e) = session.end() {
                    // A thread that waits for ever, inside of a layer, would keep us for ever.
                    std::process::exit(output::report(&e, false).into());
                }
            }
        });
        session.wait();
        handle.close();
    });
}

/// One line: `requests: lookup 12, getattr 3`.
fn statistics(session: &Session) -> String {
    let counts = session.stats().snapshot();
    let counts = counts.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>();
    format!("requests: {}", counts.join(", "))
}
