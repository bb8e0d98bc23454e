//! Env servers: the protocol of verifiers 0.4.0 both ways, and pools of workers that outlive their faults.
//!
//! What enters is a task with a model to run it on; what leaves is its episode. A server that is gone, or answers no
//! more, is a failure of the infrastructure that can be redone, never a reward.
//!
//! A [`Client`] runs tasks at a server elsewhere, and [`RemoteEnv`] makes an env of one; a [`Server`] serves a [`Host`],
//! such as the [`TasksetHost`] of a taskset and a seat; a [`pool::Pool`] is many servers behind one address.

mod client;
mod error;
mod host;
mod links;
mod message;
mod payload;
pub mod pool;
mod remote;
mod server;
mod stream;

pub use client::Client;
pub use error::{HealthError, NotReady, RunError};
pub use host::{HostSettings, TasksetHost};
pub use message::{Refused, RunRequest, Unsendable};
pub use remote::{RemoteEnv, RemoteSettings};
pub use server::{Host, Server, ServerSettings};
