//! Git in commands that run in forks: it asks the fork what changed, instead of looking at every file.
//!
//! Settings in the environment of the command name the hook, `treefork fsmonitor`; nothing is written into any
//! repository. Where it cannot be had, git simply looks at everything.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::fork::{Forks, Record};
use crate::run::{Attach, Environment, Root, Target};
use crate::server::{self, Client};
use crate::strategy::Way;

/// Has git ask the fork what changed, in a command with this environment, unless the environment says otherwise.
pub fn observe(target: &mut Target, forks: &Forks, record: &Record, environment: &mut Environment) {
    // Without a repository at its root a base is not worth being followed as a whole.
    let suits = record.strategy == Way::Overlay && record.base.path.join(".git").exists();
    if !suits || !environment.wants_fsmonitor() {
        return;
    }
    let Some(hook) = hook(&record.base.path, forks.store().root()) else { return };
    let store = forks.store().root().to_path_buf();
    let kept = forks.store().base(&record.base.key());
    let id = record.id.to_string();
    let observe = move || match Client::new(&store).observe(&id, &kept, false) {
        Ok(_) => true,
        Err(e) => {
            log::debug!("git looks at every file: {e}");
            false
        }
    };
    match &mut target.root {
        Root::Unmounted(Attach { serve, .. }) => {
            let attach = std::mem::replace(serve, Box::new(|_| Ok(())));
            *serve = Box::new(move |device| {
                attach(device)?;
                observe();
                Ok(())
            });
        }
        _ if observe() => {}
        _ => return,
    }
    environment.git_setting("core.fsmonitor", hook);
    environment.git_setting("core.untrackedCache", "true");
    // Recent versions take FUSE for a file system whose changes others make unheard.
    environment.git_setting("fsmonitor.allowRemote", "true");
}

/// The command line of the hook, for a shell; nothing where the program cannot be had in the command: unknown, in the
/// store, which is hidden, or in the base, where the fork's own file of that name would be run.
fn hook(base: &Path, store: &Path) -> Option<String> {
    let program = server::program_path()?;
    let hidden = |path: &Path| [base, store].iter().any(|place| path.starts_with(place));
    let resolved: PathBuf = program.canonicalize().ok()?;
    if hidden(&program) || hidden(&resolved) {
        return None;
    }
    let quoted = std::str::from_utf8(program.as_os_str().as_bytes()).ok()?.replace('\'', r"'\''");
    let plain = quoted.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+".contains(&b));
    Some(if plain { format!("{quoted} fsmonitor") } else { format!("'{quoted}' fsmonitor") })
}
