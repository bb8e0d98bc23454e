//! Child processes: the one door through which anything is started.
//!
//! A [`Program`] says what to run; a [`Child`] owns it, with everything that it starts itself, until it is dropped. No
//! child outlives this process, however that ends. All of them are started, watched and reaped by one thread of this
//! process, on which [`run`] and [`block_on`] put work beside them; so a child belongs to no tokio runtime of its user.

mod folder;
mod guard;
mod process;
mod sandbox;
mod thread;

pub use folder::PrivateFolder;
pub use nix::sys::signal::Signal;
pub use process::{Child, Ending, Program, StartError, Stream, turn_into};
pub use sandbox::{Limits, Route, RouteError, Sandbox, SandboxError, Unenforced, enter};
pub use thread::{block_on, run};
