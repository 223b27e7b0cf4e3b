//! Starting the server in the background: one client starts it, the others wait for that.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::log_file;
use crate::durable::{FileLock, Wait};
use crate::error::{Context, Error, Kind, Result};

/// What the server writes to its standard output once it answers.
pub const READY: &[u8] = b"ready\n";

/// Set in the environment of a host's program that is started to be the server.
pub const AS_SERVER: &str = "TREEFORK_AS_SERVER";

/// Which program is started as the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// A `treefork` at this path.
    At(PathBuf),
    /// The running program, which looks for [`AS_SERVER`] at the start of its `main`.
    This,
}

static PROGRAM: OnceLock<Program> = OnceLock::new();

/// Says which program is started as the server from now on. The first call in a process counts.
pub fn set_program(program: Program) {
    // Whoever called first has decided.
    let _ = PROGRAM.set(program);
}

/// What a host can do about a server that is not found.
const WHICH: &str = "install treefork, name its program in TREEFORK_BIN, or begin main with treefork::serve_if_asked()";

/// Starting includes mounting again all forks of the store.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts the server of a store and returns when it answers. `runs` says whether one does meanwhile.
pub(super) fn start(store: &Path, runs: impl Fn() -> Result<bool>) -> Result<()> {
    let _starting = lock(store)?;
    if runs()? {
        return Ok(());
    }
    let mut command = program()?;
    let program = PathBuf::from(command.get_program());
    let log = log_file::open(store)?;
    command.args(["serve", "--background", "--store"]).arg(store).current_dir("/");
    if PROGRAM.get() == Some(&Program::This) {
        command.env(AS_SERVER, "1");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    let mut between = crate::sys::detach(&mut command).spawn().map_err(|e| {
        let missing = e.kind() == std::io::ErrorKind::NotFound;
        let error = Error::io("cannot start the server", e).at(&program);
        if missing { error.remedy(WHICH) } else { error }
    })?;
    let mut said = Vec::new();
    // Ends when the server has said that it is ready, or with the server.
    let heard = between.stdout.take().expect("it is piped").read_to_end(&mut said);
    between.wait().context("cannot wait for the server", &program)?;
    heard.context("cannot hear the server", &program)?;
    if said == READY {
        return Ok(());
    }
    let why = String::from_utf8_lossy(&said);
    let why = if why.trim().is_empty() { "it ended without a word" } else { why.trim() };
    let error = Error::new(Kind::Unavailable, "the server did not start; its log is");
    Err(error.at(store.join("server.log")).because(why.to_owned()))
}

/// Held while a server starts, from before it reads which forks it has to mount until it has mounted them: whoever holds
/// it and finds no server knows that none is about to mount anything.
pub(super) fn lock(store: &Path) -> Result<FileLock> {
    FileLock::acquire(&store.join("server.start"), "start of the server", Wait::For(PATIENCE))
}

/// The program that becomes the server. That of a host which did not say: see [`crate::api::host`].
fn program() -> Result<Command> {
    let path = match PROGRAM.get() {
        Some(Program::This) => return Ok(this_program()),
        Some(Program::At(path)) => path.clone(),
        None => match std::env::var_os("TREEFORK_BIN").filter(|v| !v.is_empty()) {
            Some(path) => path.into(),
            None => {
                let this = std::env::current_exe().context("cannot find out the running program", THIS)?;
                Some(this.with_file_name("treefork")).filter(|path| path.exists()).unwrap_or("treefork".into())
            }
        },
    };
    Ok(Command::new(path))
}

/// What the kernel has running as this process, also where its file was renamed, replaced or deleted since.
const THIS: &str = "/proc/self/exe";

/// A command that starts the running program once more, under the name by which people look for it.
pub fn this_program() -> Command {
    let mut command = Command::new(THIS);
    command.arg0("treefork");
    command
}

/// Where a `treefork` is that other programs can start: the one that was set, this one, or for a host of the library
/// `$TREEFORK_BIN` or one beside it. `None` where there is none, or only one whose file is gone.
pub fn program_path() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let set = match PROGRAM.get() {
        Some(Program::At(path)) => Some(path.clone()),
        _ => None,
    };
    let own = Some(this.clone()).filter(|this| this.file_stem().is_some_and(|stem| stem == "treefork"));
    let named = std::env::var_os("TREEFORK_BIN").map(PathBuf::from);
    let all = [set, own, named, Some(this.with_file_name("treefork"))];
    all.into_iter().flatten().find(|path| path.is_absolute() && path.exists())
}
