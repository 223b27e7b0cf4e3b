//! What client and server say to each other: one [`Request`], one answer, each with the version of the protocol.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::layer::hidden::Hide;
use crate::overlay::{Limits, Usage};
use crate::sys::{Ident, Time};

/// The version that both sides must speak.
pub(super) const VERSION: u32 = 3;

/// One overlay to be served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountSpec {
    /// The fork's id.
    pub id: String,
    /// The root of the base: absolute, without symbolic links.
    #[serde(with = "crate::names::json")]
    pub base: PathBuf,
    /// Which directory that has to be.
    pub base_ident: Ident,
    /// The device that it was on when the fork was made.
    pub base_dev: u64,
    /// Preserved layers between the upper and the base, in the order of the merges.
    pub layers: Vec<Layer>,
    /// The private layer.
    #[serde(with = "crate::names::json")]
    pub upper: PathBuf,
    /// What the overlay keeps beside it.
    #[serde(with = "crate::names::json")]
    pub work: PathBuf,
    /// Where it is mounted; of no meaning where the client brings the device.
    #[serde(with = "crate::names::json")]
    pub point: PathBuf,
    /// When the fork was made.
    pub created: Time,
    /// What of the base it leaves out.
    #[serde(default)]
    pub hide: Hide,
    /// What it may take on the disk.
    #[serde(default)]
    pub limits: Limits,
}

/// A preserved layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layer {
    /// Its directory (see [`crate::layer::preserved`]).
    #[serde(with = "crate::names::json")]
    pub dir: PathBuf,
}

/// What a client may ask for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Request {
    /// Who is there.
    Ping,
    /// Mount this, unless it is mounted.
    Mount(MountSpec),
    /// Serve this on the FUSE device that comes with the request; the client has mounted it.
    Attach(MountSpec),
    /// End the mount of this fork; nothing to do is success.
    Unmount {
        /// The fork.
        id: String,
        /// Nothing of it is wanted any more.
        #[serde(default)]
        discard: bool,
    },
    /// All mounts.
    List,
    /// How many requests of each kind the kernel has sent for this fork.
    Stats {
        /// The fork.
        id: String,
    },
    /// The paths of the base that changed under this fork.
    Drift {
        /// The fork.
        id: String,
    },
    /// Show the attributes of a layer that is being made for objects that only gain a name by it.
    Expect {
        /// The fork.
        id: String,
        /// The layer.
        layer: Layer,
    },
    /// Put a new, complete preserved layer above the base of this fork. Doing so twice is fine.
    Preserve {
        /// The fork.
        id: String,
        /// The layer.
        layer: Layer,
    },
    /// Read through this preserved layer no more: the base has everything of it again. It is not emptied yet.
    Withdraw {
        /// The fork.
        id: String,
        /// The layer.
        layer: Layer,
    },
    /// Observe the fork for git: it can be asked from inside what changed.
    Observe {
        /// The fork.
        id: String,
        /// The directory that the store keeps for its base.
        #[serde(with = "crate::names::json")]
        kept: PathBuf,
        /// Answer when the base's index is prepared, or cannot be.
        wait: bool,
    },
    /// Complete the large files of this fork that are still being copied up, whether it is mounted or not.
    Settle(MountSpec),
    /// Bring all that was written in the fork to the disk, large files complete.
    Sync {
        /// The fork.
        id: String,
    },
    /// End all mounts and the server.
    Shutdown,
}

impl Request {
    /// How long an answer may take. Questions are answered from memory; mounting and unmounting may have to wait for the
    /// last requests of a mount, and for a disk that is busy.
    pub(super) fn patience(&self) -> Duration {
        let seconds = match self {
            Request::Ping | Request::List | Request::Stats { .. } | Request::Drift { .. } => 15,
            Request::Mount(_)
            | Request::Attach(_)
            | Request::Unmount { .. }
            | Request::Preserve { .. }
            | Request::Withdraw { .. }
            | Request::Expect { .. }
            | Request::Settle(_)
            | Request::Observe { .. }
            | Request::Sync { .. }
            | Request::Shutdown => 120,
        };
        Duration::from_secs(seconds)
    }

    /// Whether an answer may take longer than one from memory does.
    pub(super) fn takes_long(&self) -> bool {
        self.patience() > Request::Ping.patience()
    }
}

/// What the server answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Reply {
    /// Done.
    Done,
    /// To `Observe`: whether a prepared index is there for the fork.
    Observed(bool),
    /// To `Ping`.
    Pong(Pong),
    /// To `List`.
    Mounts(Vec<MountInfo>),
    /// To `Stats`.
    Stats(BTreeMap<String, u64>),
    /// To `Drift`.
    Drift {
        /// What changed.
        paths: Vec<DriftedPath>,
        /// Some directories of the base are not watched.
        unwatched: bool,
    },
    /// It did not work.
    Failed(Failure),
}

/// Who answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pong {
    /// Process number of the server.
    pub pid: u32,
    /// Version of the program.
    pub program: String,
    /// How many mounts it serves.
    pub mounts: usize,
}

/// One mount, as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountInfo {
    /// The fork.
    pub id: String,
    /// Where it is mounted; `None` where a client brought the device.
    pub point: Option<PlacedAt>,
    /// What the fork takes; `None` where it has no limits, and while that is being counted.
    #[serde(default)]
    pub usage: Option<Usage>,
}

/// A path in a reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedAt(#[serde(with = "crate::names::json")] pub PathBuf);

/// A path of the base, below its root.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DriftedPath(#[serde(with = "crate::names::json")] pub PathBuf);

/// An [`Error`], flattened for the way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// The word for its kind.
    pub kind: String,
    /// The message.
    pub message: String,
    /// What can be done about it.
    pub hint: Option<String>,
    /// The errno behind it.
    pub errno: Option<i32>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self {
            kind: error.kind().as_str().into(),
            message: error.to_string(),
            hint: error.hint().map(str::to_owned),
            errno: error.errno(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let kind = Kind::parse(&failure.kind).unwrap_or(Kind::Io);
        let error = Error::new(kind, failure.message);
        match failure.hint {
            Some(hint) => error.remedy(hint),
            None => error,
        }
    }
}

/// What goes over the wire: the version, so that another one is told apart before anything else is understood.
#[derive(Serialize, Deserialize)]
pub(super) struct Envelope<T> {
    pub(super) version: u32,
    pub(super) message: T,
}
